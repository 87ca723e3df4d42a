package main

import (
	"net/http"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type adjustedFlags struct {
	Adjusted bool `help:"Show the adjustments in force at a running sidecar."`
	adminFlags
}

// set returns the adjustments to show, or nil if the flags request none.
func (f *adjustedFlags) set(a *app) (*adjust.Set, error) {
	if !f.Adjusted {
		return nil, nil
	}
	var answer listedAdjustments
	if _, err := f.call(a, http.MethodGet, "adjustments", nil, &answer); err != nil {
		return nil, err
	}
	answer.warn(a)
	return adjust.NewSet(adjust.Head{Version: answer.Version}, answer.Adjustments), nil
}

type appliedAdjustment struct {
	ID      string `json:"id"`
	InForce bool   `json:"in_force"`
	// Words describe the effect, or why the adjustment has none.
	Words  string `json:"words"`
	Author string `json:"author"`
	Reason string `json:"reason"`
}

// adjusted lists the adjustments of the limit and key of result i of call that have not expired. configured is
// the limit's policy without adjustments.
func adjusted(set *adjust.Set, call *limiter.Call, i int, configured *limiter.Policy, now algorithms.Micros) (list []appliedAdjustment) {
	r := &call.Results[i]
	key := call.AppendValues(nil, r)
	for _, a := range set.All() {
		t := &a.Target
		if t.Domain != configured.Domain || t.Limit != configured.Name || a.Expires <= now {
			continue
		}
		if t.Entry != "" && !configured.HasValue(key, t.Entry, t.Value) || t.Entry == "" && !t.AllKeys && !slices.Equal(t.Key, key) {
			continue
		}
		x := appliedAdjustment{ID: a.ID, Author: a.Author, Reason: a.Reason}
		words, err := limiter.AdjustmentWords(a, configured)
		switch x.InForce = r.Policy.Adjusted != nil && r.Policy.Adjusted.ID == a.ID; {
		case err != nil:
			words = "ignored: " + err.Error()
		case !x.InForce:
			words = "not applied, because a narrower adjustment takes precedence: " + words
		}
		x.Words = words
		list = append(list, x)
	}
	return list
}

func systemClock() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }

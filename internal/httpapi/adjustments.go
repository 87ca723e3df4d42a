package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Adjustments serves the paths below /api/adjustments on the admin listener.
type Adjustments struct {
	Service *adjust.Service
	// MayChange returns the reason why r may not change adjustments, or nil if it may. A cookie or an
	// address of this machine is not enough: cookies do not depend on the port, and the containers of a pod
	// share their addresses.
	MayChange func(r *http.Request) error
}

var (
	refused          = kind{"forbidden", "Changes need the admin token", http.StatusForbidden}
	noAdjustment     = kind{"unknown-adjustment", "There is no such adjustment", http.StatusNotFound}
	concurrentChange = kind{"conflict", "The adjustments have changed", http.StatusConflict}
	wrongAdjustment  = kind{"wrong-adjustment", "The adjustment cannot be made", http.StatusBadRequest}
)

// An answer lists defaultEntries entries of the audit, or the number that the request states, up to maxEntries.
const defaultEntries, maxEntries = 50, 1000

func (a *Adjustments) paths() map[string]map[string]http.HandlerFunc {
	return map[string]map[string]http.HandlerFunc{
		"/api/adjustments":              {http.MethodGet: a.list, http.MethodPost: a.changes(a.set)},
		"/api/adjustments/preview":      {http.MethodPost: a.preview},
		"/api/adjustments/audit":        {http.MethodGet: a.audit},
		"/api/adjustments/audit/verify": {http.MethodGet: a.verify},
		"/api/adjustments/{id}":         {http.MethodGet: a.show, http.MethodDelete: a.changes(a.remove)},
	}
}

// changes allows only requests that may change adjustments. It accepts only JSON, which a form of a web
// page cannot send.
func (a *Adjustments) changes(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := a.MayChange(r); err != nil {
			refused.write(w, err.Error(), "")
			return
		}
		if r.Header.Get("Content-Type") != "application/json" {
			wrongType.write(w, sendJSON, "")
			return
		}
		handle(w, r)
	}
}

func (a *Adjustments) list(w http.ResponseWriter, _ *http.Request) {
	all, version := a.Service.List()
	if all == nil {
		all = []adjust.Shown{}
	}
	status := a.Service.Status()
	answer := map[string]any{"version": version, "adjustments": all, "kept_in": status.Place, "lasting": status.Persistent}
	if status.Err != nil {
		answer["problem"] = status.Err.Error()
	}
	send(w, http.StatusOK, "application/json", answer)
}

func (a *Adjustments) show(w http.ResponseWriter, r *http.Request) {
	shown, err := a.Service.Find(r.PathValue("id"))
	if err != nil {
		a.mistake(w, err)
		return
	}
	send(w, http.StatusOK, "application/json", map[string]any{"adjustment": shown})
}

// proposal parses the body. If it returns false, it has answered with the error.
func (a *Adjustments) proposal(w http.ResponseWriter, r *http.Request) (p adjust.Proposal, ok bool) {
	body, ok := readBody(w, r)
	if !ok {
		return p, false
	}
	p, err := adjust.ParseProposal(body)
	if err != nil {
		malformed.write(w, err.Error(), "")
		return p, false
	}
	return p, true
}

func (a *Adjustments) preview(w http.ResponseWriter, r *http.Request) {
	p, ok := a.proposal(w, r)
	if !ok {
		return
	}
	shown, err := a.Service.Preview(p)
	if err != nil {
		a.mistake(w, err)
		return
	}
	send(w, http.StatusOK, "application/json", map[string]any{"adjustment": shown})
}

func (a *Adjustments) set(w http.ResponseWriter, r *http.Request) {
	p, ok := a.proposal(w, r)
	if !ok {
		return
	}
	shown, version, err := a.Service.Set(r.Context(), p)
	if err != nil {
		a.mistake(w, err)
		return
	}
	send(w, http.StatusOK, "application/json", map[string]any{"version": version, "adjustment": shown})
}

func (a *Adjustments) remove(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	removal, err := adjust.ParseRemoval(body)
	if err != nil {
		malformed.write(w, err.Error(), "")
		return
	}
	version, err := a.Service.Delete(r.Context(), r.PathValue("id"), removal.Author, removal.Reason, removal.Version)
	if err != nil {
		a.mistake(w, err)
		return
	}
	send(w, http.StatusOK, "application/json", map[string]any{"version": version})
}

func (a *Adjustments) audit(w http.ResponseWriter, r *http.Request) {
	before, n, err := page(r.URL.RawQuery)
	if err != nil {
		malformed.write(w, err.Error(), "")
		return
	}
	entries, err := a.Service.Audit(r.Context(), before, n)
	if err != nil {
		a.mistake(w, err)
		return
	}
	if entries == nil {
		entries = []*adjust.Entry{}
	}
	send(w, http.StatusOK, "application/json", map[string]any{"entries": entries})
}

func (a *Adjustments) verify(w http.ResponseWriter, r *http.Request) {
	n, err := a.Service.Verify(r.Context())
	answer := map[string]any{"entries": n, "whole": err == nil}
	switch broken, is := errors.AsType[*adjust.BrokenChain](err); {
	case is:
		answer["problem"] = broken.Error()
	case err != nil:
		a.mistake(w, err)
		return
	}
	send(w, http.StatusOK, "application/json", answer)
}

// page parses the query that selects a part of the audit: n entries that are older than the given version. If the
// query has no version, the result is 0, which selects the newest entries.
func page(raw string) (version uint64, n int, err error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return 0, 0, errors.New("the query cannot be parsed")
	}
	n = defaultEntries
	for name, list := range values {
		switch {
		case len(list) != 1 || name != "n" && name != "before":
			return 0, 0, errors.New("the only parameters are n and before, at most once each; remove " + descriptors.Printable(name))
		case name == "n":
			if n, err = strconv.Atoi(list[0]); err != nil || n < 1 || n > maxEntries {
				return 0, 0, errors.New("n must be from 1 to 1000")
			}
		default:
			if version, err = strconv.ParseUint(list[0], 10, 64); err != nil {
				return 0, 0, errors.New("before must be the version of an entry")
			}
		}
	}
	return version, n, nil
}

func (a *Adjustments) mistake(w http.ResponseWriter, err error) {
	wrong, ok := errors.AsType[*adjust.Mistake](err)
	switch {
	case ok:
		wrongAdjustment.write(w, wrong.Problem, "")
	case errors.Is(err, adjust.ErrNotFound):
		noAdjustment.write(w, err.Error(), "")
	case errors.Is(err, adjust.ErrConflict):
		concurrentChange.write(w, err.Error(), "")
	default:
		unavailable.write(w, err.Error(), "")
	}
}

package httpapi

import (
	"errors"
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
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

// defaultEntries is the number of entries of the audit in an answer, unless the request states one.
const defaultEntries = 50

func (a *Adjustments) paths() map[string]map[string]http.HandlerFunc {
	return map[string]map[string]http.HandlerFunc{
		"/api/adjustments":         {http.MethodGet: a.list, http.MethodPost: a.changes(a.set)},
		"/api/adjustments/preview": {http.MethodPost: a.preview},
		"/api/adjustments/audit":   {http.MethodGet: a.audit},
		"/api/adjustments/{id}":    {http.MethodGet: a.show, http.MethodDelete: a.changes(a.remove)},
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
	n, err := howMany(r.URL.RawQuery, defaultEntries)
	if err != nil {
		malformed.write(w, err.Error(), "")
		return
	}
	entries := a.Service.Audit(n)
	if entries == nil {
		entries = []*adjust.Entry{}
	}
	send(w, http.StatusOK, "application/json", map[string]any{"entries": entries})
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

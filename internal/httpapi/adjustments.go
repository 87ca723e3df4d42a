package httpapi

import (
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

// defaultEntries is the number of entries of the audit in an answer, unless the request states one.
const defaultEntries = 50

func (a *Adjustments) paths() map[string]operations {
	return map[string]operations{
		"/api/adjustments":         {http.MethodGet: a.list, http.MethodPost: a.changes(a.set)},
		"/api/adjustments/preview": {http.MethodPost: a.preview},
		"/api/adjustments/audit":   {http.MethodGet: a.audit},
		"/api/adjustments/{id}":    {http.MethodGet: a.show, http.MethodDelete: a.changes(a.remove)},
	}
}

// changes allows only requests that may change adjustments. It accepts only JSON, which a form of a web
// page cannot send.
func (a *Adjustments) changes(answer operation) operation {
	return func(r *http.Request, body []byte) (any, error) {
		if err := a.MayChange(r); err != nil {
			return nil, refused.because(err.Error())
		}
		if r.Header.Get("Content-Type") != "application/json" {
			return nil, wrongType.because(sendJSON)
		}
		return answer(r, body)
	}
}

func (a *Adjustments) list(*http.Request, []byte) (any, error) {
	all, version := a.Service.List()
	if all == nil {
		all = []*adjust.Adjustment{}
	}
	status := a.Service.Status()
	answer := map[string]any{"version": version, "adjustments": all, "kept_in": status.Place, "lasting": status.Persistent}
	if status.Err != nil {
		answer["problem"] = status.Err.Error()
	}
	return answer, nil
}

func (a *Adjustments) show(r *http.Request, _ []byte) (any, error) {
	shown, err := a.Service.Find(r.PathValue("id"))
	return map[string]any{"adjustment": shown}, err
}

func (a *Adjustments) preview(_ *http.Request, body []byte) (any, error) {
	p, err := adjust.ParseProposal(body)
	if err != nil {
		return nil, malformed.because(err.Error())
	}
	shown, err := a.Service.Preview(p)
	return map[string]any{"adjustment": shown}, err
}

func (a *Adjustments) set(r *http.Request, body []byte) (any, error) {
	p, err := adjust.ParseProposal(body)
	if err != nil {
		return nil, malformed.because(err.Error())
	}
	shown, version, err := a.Service.Set(r.Context(), p)
	return map[string]any{"version": version, "adjustment": shown}, err
}

func (a *Adjustments) remove(r *http.Request, body []byte) (any, error) {
	removal, err := adjust.ParseRemoval(body)
	if err != nil {
		return nil, malformed.because(err.Error())
	}
	version, err := a.Service.Delete(r.Context(), r.PathValue("id"), removal.Author, removal.Reason, removal.Version)
	return map[string]any{"version": version}, err
}

func (a *Adjustments) audit(r *http.Request, _ []byte) (any, error) {
	_, n, err := listed(r, defaultEntries)
	if err != nil {
		return nil, err
	}
	entries := a.Service.Audit(n)
	if entries == nil {
		entries = []*adjust.Entry{}
	}
	return map[string]any{"entries": entries}, nil
}

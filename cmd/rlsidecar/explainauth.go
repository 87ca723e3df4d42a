package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// requestToExplain describes a client's request, about which a proxy would call /v1/auth.
type requestToExplain struct {
	Request  string   `placeholder:"'METHOD TARGET'" help:"Instead of descriptors: explain how /v1/auth handles a request, such as 'POST /login?next=1'."`
	Header   []string `short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"Header of the request. May be repeated."`
	ClientIP string   `name:"client-ip" placeholder:"ADDRESS" help:"Client address of the request."`
}

func (a requestToExplain) read() (*routing.Request, error) {
	method, uri, ok := strings.Cut(a.Request, " ")
	if !ok || method == "" || uri == "" {
		return nil, fmt.Errorf("--request %q is not METHOD TARGET, such as 'GET /'", a.Request)
	}
	q := &routing.Request{Method: method, Header: map[string][]string{}}
	path, query := canonical.Split(uri)
	q.SetPath(path)
	q.Query, q.Fragment = query, strings.Contains(uri, "#")
	for _, line := range a.Header {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("--header %q is not NAME: VALUE", line)
		}
		name, value = http.CanonicalHeaderKey(name), strings.Trim(value, " \t")
		if name == "Host" {
			q.Host = routing.HostName(value)
			continue
		}
		q.Header[name] = append(q.Header[name], value)
	}
	if a.ClientIP != "" {
		addr, err := netip.ParseAddr(a.ClientIP)
		if err != nil {
			return nil, fmt.Errorf("--client-ip: %w", err)
		}
		q.Client = addr.Unmap().WithZone("")
	}
	return q, nil
}

type explainedRequest struct {
	Request string      `json:"request"`
	Route   *routeTaken `json:"route,omitempty"`
	// LeftOut lists the descriptors that are omitted because a value is missing.
	LeftOut []leftOut `json:"left_out,omitempty"`
	// Repeated is a source of values, such as a header, that the request has more than once or, for a cookie, in a form
	// that applications read in different ways. It is "#" if the target contains it. The request is denied for that
	// reason.
	Repeated string `json:"repeated,omitempty"`
	// Default is the answer if no limit applies: allow or deny.
	Default     string      `json:"unasked,omitempty"`
	Descriptors []explained `json:"descriptors"`
}

type routeTaken struct {
	Place  string `json:"place"`
	Domain string `json:"domain"`
	Hits   int64  `json:"hits"`
	Check  bool   `json:"check,omitempty"`
}

// leftOut is a descriptor that is omitted, described by its keys, and its first missing value.
type leftOut struct {
	Descriptor string `json:"descriptor"`
	Missing    string `json:"missing"`
}

func (c *explainCmd) explainRequest(a *app, s *limiter.Snapshot, set *adjust.Set, q *routing.Request) error {
	x := explainedRequest{Request: c.Request, Descriptors: []explained{}}
	if s.Auth == nil {
		return exitError{exitNo, errors.New("the configuration has no section auth, so /v1/auth denies everything")}
	}
	route := routing.Find(s.Auth, q)
	if x.Repeated = routing.Repeated(s.Auth, route, q); x.Repeated == "" && route != nil {
		x.Route = &routeTaken{route.Place, route.Domain, route.Hits, route.DryRun}
		x.LeftOut = missing(s.Auth, route, q)
		var call limiter.Call
		routing.Fill(&call, s.Auth, route, q)
		if len(call.Descriptors) > 0 && s.Domains[route.Domain] != nil {
			all, err := explain(a.ctx, s, set, call.Request)
			if err != nil {
				return err
			}
			for i := range all {
				all[i].Descriptor = entriesText(call.Descriptors[i].Entries)
			}
			x.Descriptors = all
		}
	}
	if len(x.Descriptors) == 0 {
		x.Default = "deny"
		if s.Auth.Allow && x.Repeated == "" && (route == nil || !s.Requires(route.Domain)) {
			x.Default = "allow"
		}
	}
	return c.print(a.stdout, x, explainedRequestText)
}

func missing(auth *limiter.Auth, route *limiter.Route, q *routing.Request) (out []leftOut) {
	for _, entries := range route.Descriptors {
		var keys []string
		for i := range entries {
			keys = append(keys, descriptors.Printable(entries[i].Key))
		}
		lacks := slices.IndexFunc(entries, func(e limiter.AuthEntry) bool {
			_, ok := routing.Value(auth, route, &e, q)
			return !ok
		})
		if lacks >= 0 {
			out = append(out, leftOut{strings.Join(keys, ","), entries[lacks].Source()})
		}
	}
	return out
}

func entriesText(entries []descriptors.Entry) string {
	var texts []string
	for _, e := range entries {
		texts = append(texts, entryText(e))
	}
	return strings.Join(texts, ",")
}

const explainedRequestText = `{{safe .Request}}
{{with .Route}}
  route {{.Place}}: domain {{safe .Domain}}, hits {{.Hits}}{{if .Check}}, as a dry run{{end}}
{{else}}
{{if not .Repeated}}
  no route matches
{{end}}
{{end}}
{{range .LeftOut}}
  left out: {{.Descriptor}}, because the request has no {{.Missing}}
{{end}}
{{if eq .Repeated "#"}}
  denied, because the target contains "#"
{{else if .Repeated}}
  denied, because applications may read different values of {{.Repeated}}
{{else if .Default}}
  no limit applies; answer: {{.Default}}
{{end}}
{{with .Descriptors}}

{{template "explained" .}}
{{end}}
` + explainedText

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/server"
)

type adminFlags struct {
	AdminListen    string        `setting:"flag" default:"127.0.0.1:6070" placeholder:"ADDR" help:"Address of the sidecar's admin listener: the value of serve's --admin-listen (${default})."`
	AdminToken     string        `setting:"variable" placeholder:"TOKEN" help:"Bearer token of the admin listener, if it requires one."`
	AdminTokenFile string        `setting:"flag" type:"tokenfile" placeholder:"FILE" help:"File that contains the bearer token, if the listener requires one."`
	Timeout        time.Duration `default:"5s" help:"How long to wait for the answer (${default})."`
	format
}

// maxAnswer bounds the size of an answer, in bytes.
const maxAnswer = 16 << 20

// send does what call does, and prints the answer: as JSON, or target as writeText does.
func (f *adminFlags) send(a *app, method, path string, content []byte, target any, text string) error {
	body, err := f.call(a, method, path, content, target)
	if err != nil {
		return err
	}
	if f.Format == "json" {
		target = json.RawMessage(body)
	}
	return f.print(a.stdout, target, text)
}

// call sends a request for a path, which may have a query, with content as its JSON body unless it is nil. It decodes the
// answer into target, and returns it.
func (f *adminFlags) call(a *app, method, path string, content []byte, target any) (body []byte, err error) {
	if f.AdminListen == "" {
		return nil, exitError{exitUsage, errors.New("there is no admin listener to query; give --admin-listen")}
	}
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, f.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if content != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != nil {
		r.Header.Set("Authorization", "Bearer "+token())
	}
	answer, err := server.Client(f.AdminListen).Do(r)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok { // the text of a url.Error contains the query, so only its cause is shown
			err = of.Err
		}
		return nil, fmt.Errorf("query %s: %w; is a sidecar running there? (--admin-listen)", f.AdminListen, err)
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", f.AdminListen, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, f.refused(answer, body)
	}
	if err := json.Unmarshal(body, target); err != nil {
		return nil, fmt.Errorf("query %s: the answer is not valid: %w; is this rlsidecar's admin listener? (--admin-listen)", f.AdminListen, err)
	}
	return body, nil
}

func (f *adminFlags) token() (httpauth.Token, error) {
	switch {
	case f.AdminTokenFile == "":
		return httpauth.FixedToken(f.AdminToken), nil
	case f.AdminToken != "":
		return nil, exitError{exitUsage, errors.New("two tokens are given; give only one of --admin-token-file and RLSIDECAR_ADMIN_TOKEN")}
	default:
		return httpauth.FileToken(f.AdminTokenFile, zap.NewNop())
	}
}

func (f *adminFlags) refused(answer *http.Response, body []byte) error {
	var problem struct{ Title, Detail string }
	switch {
	case answer.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("query %s: the token is missing or wrong; give --admin-token-file, or set RLSIDECAR_ADMIN_TOKEN", f.AdminListen)
	case json.Unmarshal(body, &problem) != nil || problem.Title == "":
		return fmt.Errorf("query %s: the answer is %s; is this rlsidecar's admin listener? (--admin-listen)", f.AdminListen, answer.Status)
	case problem.Detail == "":
		problem.Detail = problem.Title
	}
	err := errors.New(problem.Detail)
	switch answer.StatusCode {
	case http.StatusBadRequest:
		return exitError{exitUsage, err}
	case http.StatusNotFound:
		return exitError{exitNo, err}
	default:
		return err
	}
}

type bucketArgs struct {
	Limit      string   `arg:"" optional:"" help:"A named limit."`
	Key        []string `arg:"" optional:"" help:"Values that identify the bucket, in the order of the descriptor."`
	Domain     string   `placeholder:"NAME" help:"The domain. Required with --descriptor, and if several domains have the limit."`
	Descriptor string   `placeholder:"KEY=VALUE,…" help:"Instead of LIMIT and KEY: select the buckets that this descriptor matches."`
}

func (b *bucketArgs) query() (url.Values, error) {
	q := url.Values{}
	switch {
	case b.Limit == "" && b.Descriptor == "", b.Limit != "" && b.Descriptor != "":
		return nil, exitError{exitUsage, errors.New("name a limit and its key, or give --domain and --descriptor key=value[,key=value]…")}
	case b.Descriptor != "":
		q.Set("descriptor", b.Descriptor)
	default:
		q.Set("limit", b.Limit)
		q["key"] = b.Key
	}
	if b.Domain != "" {
		q.Set("domain", b.Domain)
	}
	return q, nil
}

// limitNames returns the names of the named limits of a running sidecar, for completion. It returns none if the sidecar
// does not answer soon.
func limitNames() (names []string) {
	listener := adminFlags{AdminListen: cmp.Or(os.Getenv("RLSIDECAR_HTTP_LISTEN"), "127.0.0.1:8080"), Timeout: 300 * time.Millisecond}
	var list struct{ Limits []struct{ Name string } }
	_, _ = listener.call(&app{ctx: context.Background()}, http.MethodGet, "/v1/limits", nil, &list)
	for _, l := range list.Limits {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

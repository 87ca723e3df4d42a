package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// adminFlags say how to ask the admin port of a running sidecar.
type adminFlags struct {
	AdminListen    string        `default:"127.0.0.1:6070" placeholder:"ADDR" env:"RLSIDECAR_ADMIN_LISTEN" help:"The sidecar's admin port, as given to serve (${default})."`
	AdminToken     string        `placeholder:"TOKEN" env:"RLSIDECAR_ADMIN_TOKEN" help:"Its bearer token, if it has one."`
	AdminTokenFile tokenFile     `placeholder:"FILE" env:"RLSIDECAR_ADMIN_TOKEN_FILE" help:"File with that token instead."`
	Timeout        time.Duration `default:"5s" help:"How long to wait for the answer (${default})."`
	Format         string        `enum:"text,json" default:"text" help:"text or json."`
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 16 << 20

// ask asks for a path below /api/, and decodes the answer into what it is about. As JSON the answer
// is printed as it came.
func (f *adminFlags) ask(a *app, method, path string, query url.Values, into any) error {
	return f.send(a, method, path, query, nil, into)
}

// send is ask with a body in JSON; nil: none.
func (f *adminFlags) send(a *app, method, path string, query url.Values, content []byte, into any) error {
	if f.AdminListen == "" {
		return exitError{exitUsage, errors.New("there is no port to ask: give --admin-listen")}
	}
	token, err := f.token()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.ctx, f.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost/api/"+path+"?"+query.Encode(), bytes.NewReader(content))
	if err != nil {
		return err
	}
	if content != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != nil {
		r.Header.Set("Authorization", "Bearer "+token())
	}
	answer, err := server.Client(f.AdminListen).Do(r)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok { // whose text has the query
			err = of.Err
		}
		return fmt.Errorf("ask %s: %w; is a sidecar running there?", f.AdminListen, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("ask %s: %w", f.AdminListen, err)
	}
	if answer.StatusCode != http.StatusOK {
		return f.refused(answer, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("ask %s: the answer cannot be read: %w; is this rlsidecar's admin port?", f.AdminListen, err)
	}
	if f.Format == "json" {
		return writeJSON(a.stdout, json.RawMessage(body))
	}
	return nil
}

// token is the one to bring; nil: none.
func (f *adminFlags) token() (httpauth.Token, error) {
	switch {
	case f.AdminTokenFile == "":
		return httpauth.FixedToken(f.AdminToken), nil
	case f.AdminToken != "":
		return nil, exitError{exitUsage, errors.New("a token is given twice: give it, or the file with it")}
	default:
		return httpauth.FileToken(string(f.AdminTokenFile), zap.NewNop())
	}
}

// refused is what an answer says that is no answer.
func (f *adminFlags) refused(answer *http.Response, body []byte) error {
	var problem struct{ Title, Detail string }
	switch {
	case answer.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("ask %s: it wants another token; give --admin-token-file or --admin-token", f.AdminListen)
	case json.Unmarshal(body, &problem) != nil || problem.Title == "":
		return fmt.Errorf("ask %s: it answers %s; is this rlsidecar's admin port?", f.AdminListen, answer.Status)
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

// bucketArgs say which buckets are meant.
type bucketArgs struct {
	Limit      string   `arg:"" optional:"" help:"A named limit."`
	Key        []string `arg:"" optional:"" help:"The values that tell the bucket apart."`
	Domain     string   `placeholder:"NAME" help:"The domain; needed with --descriptor, and where several have the limit."`
	Descriptor string   `placeholder:"KEY=VALUE,…" help:"Instead of LIMIT: the buckets that this descriptor meets."`
}

// query is how the admin port is asked about them.
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

// shownKey is a key in an answer: a text, bytes as {"base64": …}, or a list of these.
type shownKey []string

// UnmarshalJSON reads any of these.
func (k *shownKey) UnmarshalJSON(data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, v := range list {
		switch v := v.(type) {
		case string:
			*k = append(*k, v)
		case map[string]any:
			coded, _ := v["base64"].(string)
			raw, err := base64.StdEncoding.DecodeString(coded)
			if err != nil {
				return err
			}
			*k = append(*k, string(raw))
		default:
			return fmt.Errorf("a key is %v", v)
		}
	}
	return nil
}

// String shows it to people: a terminal gets nothing that a client chose but plain text.
func (k shownKey) String() string {
	texts := make([]string, len(k))
	for i, v := range k {
		texts[i] = descriptors.Printable(v)
	}
	return strings.Join(texts, ",")
}

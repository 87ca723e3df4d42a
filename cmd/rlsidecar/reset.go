package main

import (
	"fmt"
	"io"
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type resetCmd struct {
	bucketArgs
	adminFlags
}

func (resetCmd) Help() string {
	return `Deletes a bucket through the admin listener of a running sidecar, so that the key starts
with a new one. With Redis, this applies to all sidecars. The other sidecars may deny from
their caches for up to a second more. With --descriptor, it deletes the bucket of each limit that
the descriptor matches. The sidecar logs the reset. Exits with 1 if there is no such limit,
or if the descriptor matches none.

Example:

  rlsidecar reset send_message bob
  rlsidecar reset --domain edge --descriptor path=/login,remote_address=192.0.2.7`
}

func (c *resetCmd) Run(a *app) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	var answer struct{ Reset []httpapi.ResetBucket }
	err = c.send(a, http.MethodPost, "reset?"+query.Encode(), nil, &answer, func(w io.Writer) error {
		for _, b := range answer.Reset {
			fmt.Fprintf(w, "reset %s of limit %s in domain %s\n", whole(b.Key.String()), descriptors.Printable(b.Name), descriptors.Printable(b.Domain))
		}
		return nil
	})
	if err == nil && len(answer.Reset) == 0 {
		return exitError{exitNo, errNoBucket}
	}
	return err
}

func whole(key string) string {
	if key == "" {
		return "the bucket"
	}
	return "the bucket of " + key
}

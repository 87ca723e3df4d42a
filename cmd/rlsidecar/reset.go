package main

import (
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
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
	err = c.send(a, http.MethodPost, "/api/reset?"+query.Encode(), nil, &answer, `{{range .Reset}}
reset {{bucket .Key}} of limit {{safe .Name}} in domain {{safe .Domain}}
{{end}}
`)
	if err == nil && len(answer.Reset) == 0 {
		return exitError{exitNo, errNoBucket}
	}
	return err
}

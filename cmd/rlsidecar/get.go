package main

import (
	"errors"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type getCmd struct {
	bucketArgs
	adminFlags
}

// Help is shown by get --help.
func (getCmd) Help() string {
	return `Asks the admin port of a running sidecar. Nothing is taken from the bucket. With
--descriptor, a bucket of each limit that the descriptor meets in a request; in a
key or value, \, stands for a comma and \= for an equals sign. Exits 1 if there is
no such limit, or none that the descriptor meets.

Example:

  rlsidecar get send_message bob
  rlsidecar get --domain edge --descriptor path=/login,remote_address=192.0.2.7`
}

// Run looks.
func (c *getCmd) Run(a *app) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	var answer struct {
		Buckets []struct {
			Domain     string   `json:"domain"`
			Name       string   `json:"name"`
			Key        shownKey `json:"key"`
			Remaining  int64    `json:"remaining"`
			Capacity   int64    `json:"capacity"`
			ResetAfter int64    `json:"reset_after_ms"`
		} `json:"buckets"`
	}
	if err := c.ask(a, http.MethodGet, "buckets", query, &answer); err != nil {
		return err
	}
	if c.Format == "text" && len(answer.Buckets) > 0 {
		table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "DOMAIN\tLIMIT\tKEY\tREMAINING\tOF\tFULL IN\n")
		for _, b := range answer.Buckets {
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%v\n", descriptors.Printable(b.Domain), descriptors.Printable(b.Name), b.Key,
				b.Remaining, b.Capacity, time.Duration(b.ResetAfter)*time.Millisecond)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if len(answer.Buckets) == 0 {
		return exitError{exitNo, errNoBucket}
	}
	return nil
}

var errNoBucket = errors.New("no limit keeps a bucket for it; rlsidecar explain says what it meets")

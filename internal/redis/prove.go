package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Mistake is the error for a Redis that does not work with this Store until somebody changes a setting.
// Examples are a wrong password, a missing permission, TLS on one side only, and another kind of server than
// the URL names.
type Mistake struct {
	// Server is the address of the server, or several addresses with commas between them. Problem describes the
	// mistake as a clause whose subject is the server, and may quote the server. Remedy describes what to do, as a
	// clause.
	Server, Problem, Remedy string
}

// Error implements error.
func (m *Mistake) Error() string { return "redis at " + m.Server + " " + m.Problem + "; " + m.Remedy }

const (
	// proveTimeout bounds an attempt of Prove. It is longer than the timeout of a call, because a slow server
	// is not a mistake.
	proveTimeout = time.Second
	// protocolTimeout bounds the dial of a port whose protocol is probed, and again the exchange that follows.
	protocolTimeout = 500 * time.Millisecond
	// maxProbed is the largest number of ports whose protocol is probed.
	maxProbed = 3
)

// Prove tests once whether every master runs the script for this user. The error is a *Mistake if a setting
// must change. Any other error means that the server is unavailable. Prove writes up to two keys to each master,
// and removes them.
func (s *Store) Prove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	_, err := eachMaster(ctx, s, s.decidesAt)
	if err == nil {
		return nil
	}
	if m := s.mistake(err); m != nil {
		return m
	}
	return unavailable(err)
}

// decidesAt returns an error unless the server of client decides a group of two charges. The two keys are in
// different slots. So a node of a Cluster refuses the group if the URL names a single server. If the URL names a
// Cluster, the group has one charge.
func (s *Store) decidesAt(ctx context.Context, _ string, client *goredis.Client) ([]Finding, error) {
	charges := []backend.Charge{probe(), probe()}
	charges[1].Key = []byte("doctor-2")
	if s.cluster != nil {
		slot, has := s.slotAt(ctx, client)
		if !has {
			return nil, nil // the node serves no slot, so it gets no commands
		}
		charges = charges[:1]
		charges[0].Slot = slot
	}
	client = withTimeout(client, proveTimeout)
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, err
	}
	n := s.node(client.Options(), func() {})
	defer n.wire.close()
	var d [2]backend.Decision
	n.Take(ctx, charges, d[:len(charges)])
	if d[0].Err != nil {
		return nil, d[0].Err
	}
	for i := range charges {
		_ = client.Del(ctx, s.keys.name(&charges[i])).Err() // an error is harmless, because the key expires
	}
	return nil, nil
}

// probe returns a charge that tests a server.
func probe() backend.Charge {
	limit, _ := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second}) // these numbers are valid
	return backend.Charge{Key: []byte("doctor"), Limit: &limit, Group: 1, Terms: algorithms.Charge{Cost: 1}}
}

// mistake returns the Mistake that caused err, or nil if err does not show one.
func (s *Store) mistake(err error) *Mistake {
	server := s.Place()
	if s.sentinels != nil {
		if why, addr := s.sentinels.noMasterReason(); why != nil {
			err, server = why, addr
		}
	}
	if d := diagnose(err, s.location.form); d.lasting {
		return &Mistake{server, d.problem + " (" + textOf(err) + ")", d.remedy}
	}
	if _, isReply := errors.AsType[goredis.Error](err); isReply {
		return nil
	}
	// A port with TLS may be silent, or close the connection, if the client does not use TLS. A port without
	// TLS may do the same if the client uses TLS.
	for i, addr := range s.location.hosts {
		if i == maxProbed {
			break
		}
		switch usesTLS, usesRedis := s.location.probe(addr); {
		case usesTLS && !s.location.tls:
			return &Mistake{addr, "requires TLS at this port, and --redis-url does not use it", "write rediss:// instead of redis://"}
		case usesRedis && s.location.tls:
			return &Mistake{addr, "does not use TLS at this port", "write redis:// instead of rediss://, or the port that uses TLS"}
		}
	}
	return nil
}

// probe finds out whether the server at addr uses TLS, or the Redis protocol without TLS. It sends no secret. It tries
// only the protocol that the URL does not name, because the other one has failed already.
func (l location) probe(addr string) (secure, redis bool) {
	nc, err := net.DialTimeout(l.network, addr, protocolTimeout)
	if err != nil {
		return false, false
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(protocolTimeout))
	if !l.tls {
		err := tls.Client(nc, &tls.Config{InsecureSkipVerify: true}).Handshake() //nolint:gosec // no byte of the application is sent
		var alert tls.AlertError
		return err == nil || errors.As(err, &alert) || strings.Contains(err.Error(), "remote error: tls:"), false
	}
	var reply [1]byte
	if _, err := nc.Write([]byte("PING\r\n")); err != nil {
		return false, false
	}
	n, _ := nc.Read(reply[:])
	return false, n == 1 && (reply[0] == '+' || reply[0] == '-')
}

func (s *Store) explain(err error) string {
	if m := s.mistake(err); m != nil {
		return m.Problem + "; " + m.Remedy
	}
	return advice(err, s.location.form)
}

// Place returns the hosts of the URL, for messages.
func (s *Store) Place() string { return strings.Join(s.location.hosts, ",") }

// noMasterReason returns the reason why no Sentinel has named a master yet, and the address of the Sentinel that
// gave this reason. The error is nil if a Sentinel has named a master, or if no Sentinel gave a lasting reason (see
// diagnosis).
func (w *sentinels) noMasterReason() (err error, sentinel string) { // the error is the result
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view.master != "" {
		return nil, ""
	}
	return w.err, w.errFrom
}

var errNoMaster = errors.New("a Sentinel knows no master of this name")

// refused stores the error of the Sentinel at addr, which did not return the master's address. It ignores errors that
// are not lasting (see diagnosis).
func (w *sentinels) refused(err error, addr string) {
	if !diagnose(err, "sentinel").lasting {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.errFrom = err, addr
}

package adjust

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// MaxEntries is the number of newest entries of the audit that are always kept. Up to trimBy older ones are kept until
// they are trimmed together.
const MaxEntries = 10_000

const trimBy = 500

// TrimTo returns the version of the last entry that must be trimmed when an entry is added, or 0 if none must be
// trimmed. checkpoint is the version of the last entry that is trimmed already, and added that of the added entry.
func TrimTo(checkpoint, added uint64) uint64 {
	if added-checkpoint > MaxEntries+trimBy {
		return checkpoint + trimBy
	}
	return 0
}

// Entry is one change in the audit.
type Entry struct {
	// Version counts changes from 1.
	Version uint64
	// At is the time of the change by the Keeper's clock.
	At algorithms.Micros
	// Operation is unique. An operator who got no answer can find out here whether the change was made.
	Operation string
	// Author is the name that the operator stated, without proof; Reason is the operator's reason.
	Author, Reason string
	// Target is the ID of the adjustment that was set or deleted.
	Target string
	// Before and After are the adjustment before and after the change, or nil.
	Before, After *Adjustment
	// Body is the stored form of the entry. MAC is the HMAC of the previous
	// entry's MAC and of Body.
	Body []byte
	MAC  string
}

// entryJSON is the form of an Entry's Body.
type entryJSON struct {
	Version   uint64            `json:"version"`
	At        algorithms.Micros `json:"at_us"`
	Operation string            `json:"operation"`
	Author    string            `json:"author"`
	Reason    string            `json:"reason"`
	Target    string            `json:"target"`
	Before    *Adjustment       `json:"before,omitempty"`
	After     *Adjustment       `json:"after,omitempty"`
}

func (e *Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Version   uint64      `json:"version"`
		At        time.Time   `json:"at"`
		Operation string      `json:"operation"`
		Author    string      `json:"author"`
		Reason    string      `json:"reason"`
		Target    string      `json:"target"`
		Before    *Adjustment `json:"before,omitempty"`
		After     *Adjustment `json:"after,omitempty"`
		MAC       string      `json:"mac"`
	}{e.Version, moment(e.At), e.Operation, e.Author, e.Reason, e.Target, e.Before, e.After, e.MAC})
}

// Chain computes the MACs of entries. Each depends on all earlier ones, so that a changed or removed entry is
// detected. With a secret key, write access to the store is not enough to hide a change. Without a key, the chain
// detects damage but not forgery.
type Chain struct{ key []byte }

// NewChain returns a Chain with the secret key. If key is empty, the Chain uses a key that everybody can know.
func NewChain(key []byte) *Chain {
	if len(key) == 0 {
		key = []byte("rlsidecar audit without a key")
	}
	return &Chain{key}
}

func (c *Chain) sum(parts ...string) string {
	h := hmac.New(sha256.New, c.key)
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Next completes e as the entry after head: its Version, Body and MAC.
func (c *Chain) Next(head Head, e *Entry) error {
	e.Version = head.Version + 1
	body, err := json.Marshal(entryJSON{e.Version, e.At, e.Operation, e.Author, e.Reason, e.Target, e.Before, e.After})
	if err != nil {
		return fmt.Errorf("write an entry of the audit: %w", err)
	}
	e.Body, e.MAC = body, c.sum("entry", head.MAC, string(body))
	return nil
}

// ParseEntry parses a stored entry. It does not verify the MAC.
func ParseEntry(body []byte, mac string) (*Entry, error) {
	var f entryJSON
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, fmt.Errorf("read an entry of the audit: %w", err)
	}
	return &Entry{f.Version, f.At, f.Operation, f.Author, f.Reason, f.Target, f.Before, f.After, body, mac}, nil
}

// Checkpoint is the signed Head of the newest trimmed entry. It replaces all trimmed entries.
type Checkpoint struct {
	Head
	Signature string
}

// Checkpoint returns head with a signature.
func (c *Chain) Checkpoint(head Head) Checkpoint {
	return Checkpoint{head, c.sum("checkpoint", fmt.Sprint(head.Version), head.MAC)}
}

// BrokenChain is an audit that was damaged or forged.
type BrokenChain struct{ Problem string }

func (b *BrokenChain) Error() string { return b.Problem }

func brokenChain(format string, args ...any) error { return &BrokenChain{fmt.Sprintf(format, args...)} }

// Broken returns a *BrokenChain if the chain of an audit is broken, or nil. entries are those after the checkpoint. head
// is that of the newest entry. A checkpoint at version 0 has no signature, because no entry was trimmed.
func (c *Chain) Broken(checkpoint Checkpoint, entries []*Entry, head Head) error {
	if checkpoint.Version > 0 && !hmac.Equal([]byte(checkpoint.Signature), []byte(c.Checkpoint(checkpoint.Head).Signature)) {
		return brokenChain("the checkpoint at entry %d is not signed with this key", checkpoint.Version)
	}
	at := checkpoint.Head
	for _, e := range entries {
		switch {
		case e.Version != at.Version+1:
			return brokenChain("entry %d is missing: %d follows %d", at.Version+1, e.Version, at.Version)
		case !hmac.Equal([]byte(e.MAC), []byte(c.sum("entry", at.MAC, string(e.Body)))):
			return brokenChain("entry %d was changed, or was written with another key", e.Version)
		}
		at = Head{e.Version, e.MAC}
	}
	if at != head {
		return brokenChain("the newest entries are missing: the last is %d, the version is %d", at.Version, head.Version)
	}
	return nil
}

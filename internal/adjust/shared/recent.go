package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/redis"
)

// A failover can promote a server that lacks the newest changes. At its next poll, a Keeper that
// knows these changes notices that the ledger's head has gone back. If the ledger has no change since, the
// Keeper appends the same entries again (rewrite), so that the audit stays one chain. Otherwise the Keeper
// follows the ledger and lists the lost adjustments (Status.Lost): it cannot join the two histories without
// overruling an operator.

const (
	// maxRecent bounds the entries that a Keeper remembers, in order to append them again.
	maxRecent = 100
	maxLost   = 20
)

// recent has the newest entries of a ledger, in order. It is guarded by Keeper.mu.
type recent struct {
	base    adjust.Head // the Head of the entry before entries[0]
	entries []*adjust.Entry
}

func (r *recent) add(entries ...*adjust.Entry) {
	r.entries = append(r.entries, entries...)
	if over := len(r.entries) - maxRecent; over > 0 {
		r.base = headOf(r.entries[over-1])
		r.entries = slices.Delete(r.entries, 0, over)
	}
}

// after returns the entries after head; known is false if r does not have head.
func (r *recent) after(head adjust.Head) (entries []*adjust.Entry, known bool) {
	if head == r.base {
		return r.entries, true
	}
	i := slices.IndexFunc(r.entries, func(e *adjust.Entry) bool { return headOf(e) == head })
	return r.entries[i+1:], i >= 0
}

func (r *recent) deleted(id string) bool {
	return slices.ContainsFunc(r.entries, func(e *adjust.Entry) bool { return e.Target == id && e.After == nil })
}

func headOf(e *adjust.Entry) adjust.Head { return adjust.Head{Version: e.Version, MAC: e.MAC} }

// rewrite appends the entries that the ledger has lost, and reports whether there are such entries. These are the
// entries after head, the ledger's head, in k.recent. If rewrite returns true, k's Set is newer than head. Several
// Keepers may rewrite at the same time; each entry is appended once. The caller holds k.mu.
func (k *Keeper) rewrite(ctx context.Context, head redis.LedgerHead) (bool, error) {
	missing, known := k.recent.after(adjust.Head{Version: head.Version, MAC: head.MAC})
	if !known || len(missing) == 0 {
		return false, nil
	}
	for _, e := range missing {
		c := &redis.LedgerChange{Head: head, Entry: redis.LedgerEntry{Version: e.Version, Body: string(e.Body), MAC: e.MAC}, ID: e.Target}
		if e.After != nil {
			text, err := json.Marshal(e.After)
			if err != nil {
				return true, err
			}
			c.Value = string(text)
		}
		done, err := k.config.Ledger.Append(ctx, c)
		if err != nil || !done {
			return true, err
		}
		k.rewritten.Add(1)
		head.Version, head.MAC = e.Version, e.MAC
	}
	k.report(true, nil)
	return true, nil
}

// hasForked reports whether the ledger at head lacks the newest entry that k knows, or has another one in its place.
// head must differ from the Head of k's Set. The caller holds k.mu.
func (k *Keeper) hasForked(ctx context.Context, head adjust.Head) (bool, error) {
	known := k.Set().Head
	switch {
	case known.Version == 0:
		return false, nil
	case head.Version <= known.Version:
		return true, nil
	}
	found, err := k.config.Ledger.From(ctx, known.Version, 1)
	if err != nil || len(found) == 0 || found[0].Version != known.Version {
		return false, err // without an error, the entry is not in the audit because it was trimmed long ago
	}
	return found[0].MAC != known.MAC, nil
}

// recordLost sets k.lost after the ledger has forked. The lost adjustments are the adjustments of k that the ledger's
// Set, next, lacks or has in another form, and the adjustments in next that k knows as deleted. The caller holds
// k.mu.
func (k *Keeper) recordLost(next *adjust.Set) {
	was, now := k.Set(), k.Now()
	var lost []*adjust.Adjustment
	for _, a := range adjust.Differences(was, next) {
		isKnown := was.Find(a.ID) == a
		isNewer := isKnown && next.Find(a.ID) != nil && next.Find(a.ID).Created > a.Created // an operator set it again
		if a.Expires > now && !isNewer && (isKnown || k.recent.deleted(a.ID)) {
			lost = append(lost, a)
		}
	}
	slices.SortFunc(lost, func(a, b *adjust.Adjustment) int { return cmp.Compare(a.Target.String(), b.Target.String()) })
	lost = lost[:min(len(lost), maxLost)]
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	k.lost = lost
}

// recordEntries adds entries, which k's Set now includes, to k.recent. The adjustments that they change are no longer
// lost. The caller holds k.mu.
func (k *Keeper) recordEntries(entries ...*adjust.Entry) {
	k.recent.add(entries...)
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	k.lost = slices.DeleteFunc(k.lost, func(a *adjust.Adjustment) bool {
		return slices.ContainsFunc(entries, func(e *adjust.Entry) bool { return e.Target == a.ID })
	})
}

// stillLost lists the lost adjustments that have not expired. The caller holds k.statusMu.
func (k *Keeper) stillLost() []*adjust.Adjustment {
	now := k.Now()
	k.lost = slices.DeleteFunc(k.lost, func(a *adjust.Adjustment) bool { return a.Expires <= now })
	return slices.Clone(k.lost)
}

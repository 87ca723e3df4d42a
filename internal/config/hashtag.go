package config

import (
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// hashTag determines which buckets a Redis Cluster keeps in one slot: all buckets of the domain, or the
// buckets with the same value of one entry. The zero hashTag determines nothing.
type hashTag struct {
	domain bool
	entry  string
}

func (c *compiler) hashTag(t text) hashTag {
	entry, isEntry := strings.CutPrefix(t.value, "entry:")
	switch {
	case !t.ok:
		return hashTag{}
	case t.value == "domain":
		return hashTag{domain: true}
	case isEntry && entry != "":
		return hashTag{entry: entry}
	default:
		c.mistake(t.at, "hash_tag must be \"domain\" or \"entry:KEY\", but is %q", short(t.value))
		return hashTag{}
	}
}

// slot returns the Slot of a policy of the descriptor at the end of the path steps. whole means that all entries of
// the request identify the policy's buckets. The Slot is zero if t determines none for them.
func (t hashTag) slot(domain string, steps path, whole bool) limiter.Slot {
	switch {
	case t.domain:
		return limiter.Slot{Fixed: limiter.SlotNumber(domain)}
	case t.entry == "":
		return limiter.Slot{}
	case whole:
		return limiter.Slot{Entry: t.entry}
	}
	values := 0
	for _, s := range steps {
		switch {
		case s.Key == t.entry && s.identifiesBucket():
			return limiter.Slot{Value: values + 1}
		case s.Key == t.entry:
			return limiter.Slot{Fixed: limiter.SlotNumber(s.Text)}
		case s.identifiesBucket():
			values++
		}
	}
	return limiter.Slot{}
}

// sameSlot reports a mistake if the slot of a named limit's buckets differs between the places that use the
// limit. The first of these places determines the slot.
func (c *compiler) sameSlot(d *domain, l *named, name text, p *draft) {
	switch {
	case l.used == place{}:
		l.draft.more.Slot, l.used = p.more.Slot, name.at
		l.policy.Extras = l.draft.extras()
	case l.draft.more.Slot != p.more.Slot:
		c.mistake(name.at, "hash_tag would split the buckets of limit %q: entry %q is missing in its key here, or is at another place than at %s; use another limit, or \"hash_tag: domain\"",
			name.value, d.tag.entry, l.used)
	}
}

// warnSlots warns of a descriptor whose limits are charged as a group although a Redis Cluster may keep their
// buckets in different slots.
func (c *compiler) warnSlots(at site) {
	separate := 0
	for _, p := range at.node.Found.Policies {
		if !p.Unlimited && !p.Alone && !p.Shadow && !p.Quota && p.Extra().Slot == (limiter.Slot{}) {
			separate++
		}
	}
	if separate < 2 {
		return
	}
	add := `"hash_tag: domain"`
	for _, s := range at.steps {
		if s.identifiesBucket() {
			add = fmt.Sprintf(`"hash_tag: entry:%s"`, short(s.Key))
			break
		}
	}
	c.warn(at.one.at, "a Redis Cluster charges the %d limits of this descriptor in several steps, because each has its own slot; add %s to the domain", separate, add)
}

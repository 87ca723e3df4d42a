package descriptors

import "iter"

// table maps texts to values. Most tables in a tree with several levels have one entry. Such a table has no
// map, because even an empty map with room for one entry takes 256 bytes, and because a comparison is faster
// than a lookup.
type table[V any] struct {
	first string
	value *V            // the value of first; nil means that the table is empty
	more  map[string]*V // the other entries
}

func (t *table[V]) get(text string) *V {
	if t.first == text {
		return t.value
	}
	return t.more[text]
}

// text must not have a value yet.
func (t *table[V]) add(text string, value *V) {
	switch {
	case t.value == nil:
		t.first, t.value = text, value
		return
	case t.more == nil:
		t.more = map[string]*V{}
	}
	t.more[text] = value
}

func (t *table[V]) all() iter.Seq2[string, *V] {
	return func(yield func(string, *V) bool) {
		if t.value == nil || !yield(t.first, t.value) {
			return
		}
		for text, value := range t.more {
			if !yield(text, value) {
				return
			}
		}
	}
}

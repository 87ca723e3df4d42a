package load

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// These are the keys of the entries that settle a reservation, as in `settle: {key: settle, end:
// settle_end}`.
const settleKey, settleEnd = "settle", "settle_end"

// realCost is the cost with which Config.Settle settles each reservation.
const realCost = 700

// reservationOf returns the id of a reservation from the dynamic metadata of an encoded RateLimitResponse. It
// returns nil if there is none.
func reservationOf(message []byte) []byte {
	const metadata, fields, key, value, text = 6, 1, 1, 2, 3
	for all := field(message, metadata); len(all) > 0; {
		number, kind, n := protowire.ConsumeTag(all)
		size := protowire.ConsumeFieldValue(number, kind, all[max(n, 0):])
		if n < 0 || size < 0 {
			return nil
		}
		if one, _ := protowire.ConsumeBytes(all[n:]); number == fields && string(field(one, key)) == settleKey {
			if id := field(field(one, value), text); string(id) != "none" {
				return id
			}
			return nil
		}
		all = all[n+size:]
	}
	return nil
}

// field returns the content of the first field with this number in an encoded message, if the content is
// bytes. Otherwise it returns nil.
func field(message []byte, wanted protowire.Number) []byte {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == wanted && kind == protowire.BytesType {
			b, _ := protowire.ConsumeBytes(message)
			return b
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

// appendDone appends the request that a proxy sends at the end of a stream. It contains the real cost of
// reservation id, and the descriptor that ends the reservation.
func appendDone(b []byte, domain string, id []byte) []byte {
	const requestDomain, requestDescriptors, entries, key, value, hits = 1, 2, 1, 1, 2, 3
	text := func(b []byte, number protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
	}
	within := func(b []byte, number protowire.Number, message []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), message)
	}
	descriptor := func(name string, cost uint64) []byte {
		entry := within(text(nil, key, name), value, id)
		var units []byte
		if cost > 0 {
			units = protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), cost)
		}
		return within(within(nil, entries, entry), hits, units)
	}
	b = text(b, requestDomain, domain)
	b = within(b, requestDescriptors, descriptor(settleKey, realCost))
	return within(b, requestDescriptors, descriptor(settleEnd, 0))
}

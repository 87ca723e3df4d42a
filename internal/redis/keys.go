package redis

import (
	"strconv"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// keys makes the names of buckets in Redis. Clients can influence the key of a bucket, which may contain any
// bytes, including braces. A Redis Cluster determines the slot by the first pair of braces in a name. So
// rlsidecar puts a pair of braces before the key: with "{}" the slot depends on the whole name, with "{tag}"
// only on the tag.
type keys struct {
	prefix string // contains no braces
	sum    uint16 // the checksum of the part of a name before the key, for a name without a tag
}

func newKeys(prefix string) keys { return keys{prefix, crc(0, prefix+"{}")} }

const slots = 16384

func (k keys) append(dst []byte, c *backend.Charge) []byte {
	dst = append(append(dst, k.prefix...), '{')
	if c.Slot != 0 {
		dst = strconv.AppendUint(dst, c.Slot, 36)
	}
	return append(append(dst, '}'), c.Key...)
}

// name returns the name of c's bucket.
func (k keys) name(c *backend.Charge) string { return string(k.append(nil, c)) }

// slot returns the slot of c's bucket.
func (k keys) slot(c *backend.Charge) int {
	if c.Slot != 0 {
		var tag [16]byte
		return slotOf(strconv.AppendUint(tag[:0], c.Slot, 36))
	}
	return int(crc(k.sum, c.Key) % slots)
}

// appendRecord appends to dst the name under which the answer to c's group is stored. The group has an
// idempotency key. In a cluster the record is in the slot of the group's buckets, so that one script can use
// both.
func (k keys) appendRecord(dst []byte, c *backend.Charge, slot int, inCluster bool) []byte {
	dst = append(append(dst, k.prefix...), '{')
	if inCluster {
		dst = strconv.AppendUint(dst, tags()[slot], 36)
	}
	return append(append(append(dst, '}'), recordPrefix...), c.IdempotencyKey.ID[:]...)
}

// recordPrefix follows the tag in the name of a record. In the name of a bucket, a digit follows there (the version of
// its layout), so a record and a bucket never have the same name.
const recordPrefix = "o"

// shardSlot returns the Charge.Slot of shard i of a bucket with n shards. The slots of the shards are spread
// evenly over all slots. Each master serves a range of slots, so the shards are also spread evenly over the
// masters.
func shardSlot(key []byte, i, n int) uint64 {
	first := int(xxhash.Sum64(key) % slots)
	return tags()[(first+i*slots/n)%slots]
}

// tags returns, for each slot, a number whose form in base 36 is a tag of that slot.
var tags = sync.OnceValue(func() []uint64 {
	found := make([]uint64, slots)
	for n, left := uint64(1), slots; left > 0; n++ {
		if slot := slotOf(strconv.FormatUint(n, 36)); found[slot] == 0 {
			found[slot] = n
			left--
		}
	}
	return found
})

// slotOf returns the slot that s determines; s is a name without a tag, or the tag of a name. By the Redis
// Cluster specification, the slot is CRC16 (XMODEM) modulo 16384.
func slotOf[text string | []byte](s text) int { return int(crc(0, s) % slots) }

// crc continues the checksum sum with the bytes of s.
func crc[text string | []byte](sum uint16, s text) uint16 {
	t := &crcTables
	for ; len(s) >= 8; s = s[8:] { // eight bytes at a time, which is four times as fast as one
		sum ^= uint16(s[0])<<8 | uint16(s[1])
		sum = t[7][sum>>8] ^ t[6][byte(sum)] ^ t[5][s[2]] ^ t[4][s[3]] ^ t[3][s[4]] ^ t[2][s[5]] ^ t[1][s[6]] ^ t[0][s[7]]
	}
	for i := range len(s) {
		sum = sum<<8 ^ t[0][byte(sum>>8)^s[i]]
	}
	return sum
}

// crcTables[n] is the CRC16 of each byte followed by n bytes of 0.
var crcTables = func() (tables [8][256]uint16) {
	for i := range tables[0] {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		tables[0][i] = crc
	}
	for n := 1; n < len(tables); n++ {
		for i, crc := range tables[n-1] {
			tables[n][i] = crc<<8 ^ tables[0][crc>>8]
		}
	}
	return tables
}()

package httpapi

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// reservationID returns the id of the reservation in result i of c; "" if it cannot be settled.
func (a *API) reservationID(c *limiter.Call, i int, ask *apiRequest) string {
	var id [16]byte
	if ask.id == "" {
		_, _ = rand.Read(id[:]) // never fails
	} else { // the same for a repeated request
		id = limiter.IdempotencyID("reservation", ask.id, strconv.Itoa(i), fmt.Sprint(c.Results[i].Decision.At))
	}
	r, ok := c.Reserved(i, string(id[:]))
	if !ok {
		return ""
	}
	config := ""
	if text := ask.configs[c.Results[i].Descriptor]; text != nil {
		config = string(text)
	}
	return reservation.Sign(a.secret(), &reservation.Reservation{Reservation: r, Until: r.At + c.Results[i].Decision.Wait, Config: config})
}

// secret returns the text that signs reservations: the API's token.
func (a *API) secret() string {
	if a.Token == nil {
		return ""
	}
	return a.Token()
}

// now returns the time by which reservations expire.
func (a *API) now() algorithms.Micros {
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	return algorithms.Micros(now().UnixMicro())
}

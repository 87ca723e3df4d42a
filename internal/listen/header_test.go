package listen

import (
	"net/http"
	"testing"
)

func TestAHeaderWithTheMostLinesMayArriveInParts(t *testing.T) {
	var h headerLines
	h.changed(http.StateNew)
	for range 1 + maxHeaderLines { // with the request line
		h.read([]byte("x:\r\n"))
		if h.tooMany() {
			t.Fatal("refused before the empty line that ends the header")
		}
	}
	if h.read([]byte("x:\r\n")); !h.tooMany() {
		t.Error("one line more is not refused")
	}
}

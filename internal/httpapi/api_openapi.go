package httpapi

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPI []byte

//go:embed openapi-operators.json
var operatorsOpenAPI []byte

// describeAll answers with the description of all paths of the HTTP listener.
func describeAll(w http.ResponseWriter, _ *http.Request) { sendDescription(w, openAPI) }

// describeOperators answers with the description of all paths below /api/.
func describeOperators(w http.ResponseWriter, _ *http.Request) { sendDescription(w, operatorsOpenAPI) }

func sendDescription(w http.ResponseWriter, document []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(document) // an error only means that the client has disconnected
}

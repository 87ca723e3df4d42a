package httpapi

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPI []byte

//go:embed openapi-operators.json
var operatorsOpenAPI []byte

func describeAll(w http.ResponseWriter, _ *http.Request) { sendDescription(w, openAPI) }

func describeOperators(w http.ResponseWriter, _ *http.Request) { sendDescription(w, operatorsOpenAPI) }

func sendDescription(w http.ResponseWriter, document []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(document) // an error only means that the client has disconnected
}

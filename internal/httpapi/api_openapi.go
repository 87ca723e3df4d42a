package httpapi

import _ "embed"

//go:embed openapi.json
var openAPI []byte

//go:embed openapi-operators.json
var operatorsOpenAPI []byte

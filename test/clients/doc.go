// Package clients tests the OpenAPI documents as users of other languages use them: a validator reads them, generators
// make clients in Python and TypeScript, and these and the clients of examples/clients call a sidecar.
package clients

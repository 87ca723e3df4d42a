// Package clients tests the OpenAPI documents. A validator reads them, and generators make clients in Python
// and TypeScript. These clients and those of examples/clients call a sidecar.
package clients

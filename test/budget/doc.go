// Package budget tests that a client which hangs up before its costs are known keeps its budget, with the configuration of
// docs/howto/limit-llm-tokens.md.
package budget

// Package arch keeps the house in order: which package may know which, and why; where time,
// chance and logging stop; and that what is written for readers stays true. It has tests only.
package arch

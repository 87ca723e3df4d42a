// Package arch tests the architecture: the imports of each package, with the reasons; the packages that may use clocks,
// random numbers and logging; and statements in documents about the code. It has only tests.
package arch

// Package arch has only tests. They check the imports of each package, that deciding code uses no clocks, random
// numbers and logging, the sizes of functions and structs, the pinned versions of actions and images, and the
// tracked files.
package arch

// Package budget tests how exactly parallel requests keep a budget, if their costs are known only at their end.
package budget

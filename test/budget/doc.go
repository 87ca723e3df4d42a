// Package budget tests how exactly parallel requests keep a budget of units whose costs are known only afterwards.
package budget

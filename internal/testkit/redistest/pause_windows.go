package redistest

// Pause skips the test: no signal of Windows stops a process.
func (s *Server) Pause() { s.t.Skip("needs SIGSTOP, which Windows does not have") }

// Resume does nothing, because Pause skips the test.
func (s *Server) Resume() {}

package redistest

// Pause skips the test, because Windows has no signal that pauses a process.
func (s *Server) Pause() { s.t.Skip("needs SIGSTOP, which Windows does not have") }

// Resume does nothing, because Pause skips the test.
func (s *Server) Resume() {}

// Command model is a stand-in for a language model with the HTTP API of OpenAI, to try the example: it streams an answer,
// and reports the tokens that it used in the last event, as such services do if the request has stream_options.include_usage.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"
)

// request is the part of a chat completion request that the answer depends on.
type request struct {
	Model         string
	Stream        bool
	MaxTokens     int `json:"max_tokens"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Messages []struct{ Content string }
}

// maxBody bounds a request, in bytes.
const maxBody = 1 << 20

func main() {
	listen := flag.String("listen", "127.0.0.1:9000", "address to listen at")
	delay := flag.Duration("delay", 10*time.Millisecond, "time between two words")
	flag.Parse()
	http.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { complete(w, r, *delay) })
	log.Fatal(http.ListenAndServe(*listen, nil))
}

// complete answers with max_tokens words of one token each, at least 1 and at most 100,000.
func complete(w http.ResponseWriter, r *http.Request, delay time.Duration) {
	var incoming request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&incoming); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	prompt := 0
	for _, m := range incoming.Messages {
		prompt += len(strings.Fields(m.Content))
	}
	words := max(1, min(incoming.MaxTokens, 100_000))
	usage := map[string]int{"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
	if !incoming.Stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": "answer", "object": "chat.completion", "model": incoming.Model, "usage": usage,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]string{"role": "assistant", "content": strings.Repeat("word ", words)}}},
		})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(data map[string]any) {
		data["id"], data["object"], data["model"] = "answer", "chat.completion.chunk", incoming.Model
		text, _ := json.Marshal(data)
		fmt.Fprintf(w, "data: %s\n\n", text)
		_ = http.NewResponseController(w).Flush()
	}
	for range words {
		select {
		case <-r.Context().Done(): // the client closed the connection
			return
		case <-time.After(delay):
		}
		event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]string{"content": "word "}}}})
	}
	if incoming.StreamOptions.IncludeUsage {
		event(map[string]any{"choices": []any{}, "usage": usage})
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

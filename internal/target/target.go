package simulate

import "strings"

// onePath is the one form in which the sidecar's HTTP door compares paths and makes keys of them:
// percent-decoded, with "//", "." and ".." resolved. What stands after a wrong escape stays as it
// is.
func onePath(target string) string {
	target = percentDecoded(target)
	if !strings.HasPrefix(target, "/") || !strings.Contains(target, "//") && !strings.Contains(target, "/.") {
		return target
	}
	var parts []string
	words := strings.Split(target[1:], "/")
	for i, word := range words {
		switch word {
		case "..":
			parts = parts[:max(0, len(parts)-1)]
		case "", ".":
		default:
			parts = append(parts, word)
			continue
		}
		if i == len(words)-1 { // it stood for a folder
			parts = append(parts, "")
		}
	}
	return "/" + strings.Join(parts, "/")
}

// percentDecoded decodes %HH.
func percentDecoded(text string) string {
	i := strings.IndexByte(text, '%')
	if i < 0 {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:i]...)
	for ; i < len(text); i++ {
		c := text[i]
		if c == '%' && i+2 < len(text) {
			if high, low := hexDigit(text[i+1]), hexDigit(text[i+2]); high >= 0 && low >= 0 {
				c = byte(high<<4 | low)
				i += 2
			}
		}
		out = append(out, c)
	}
	return string(out)
}

// Takes the place of Gomega's file of the same name, by `go build -overlay`. csi-sanity does not use this matcher, for which
// upstream's file imports golang.org/x/net/html/charset and all encodings of text.

package matchers

import "errors"

// MatchXMLMatcher matches nothing.
type MatchXMLMatcher struct {
	XMLToMatch any
}

// Match returns an error.
func (*MatchXMLMatcher) Match(actual any) (bool, error) {
	return false, errors.New("cannot match XML: csi-sanity is built without it")
}

// FailureMessage is that of no match.
func (*MatchXMLMatcher) FailureMessage(actual any) string { return "" }

// NegatedFailureMessage is that of no match.
func (*MatchXMLMatcher) NegatedFailureMessage(actual any) string { return "" }

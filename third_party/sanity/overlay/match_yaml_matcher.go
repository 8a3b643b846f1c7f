// Takes the place of Gomega's file of the same name, by `go build -overlay`. csi-sanity does not use this matcher, for which
// upstream's file imports a YAML parser.

package matchers

import "errors"

// MatchYAMLMatcher matches nothing.
type MatchYAMLMatcher struct {
	YAMLToMatch any
}

// Match returns an error.
func (*MatchYAMLMatcher) Match(actual any) (bool, error) {
	return false, errors.New("cannot match YAML: csi-sanity is built without it")
}

// FailureMessage is that of no match.
func (*MatchYAMLMatcher) FailureMessage(actual any) string { return "" }

// NegatedFailureMessage is that of no match.
func (*MatchYAMLMatcher) NegatedFailureMessage(actual any) string { return "" }

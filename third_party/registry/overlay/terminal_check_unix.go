// Takes the place of logrus's file of the same name, by `go build -overlay`. Upstream's file imports golang.org/x/sys/unix for one
// system call.

package logrus

func isTerminal(fd int) bool { return false }

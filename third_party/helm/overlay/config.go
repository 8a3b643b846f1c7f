// Takes the place of client-go's file of the same name and of the other files of its package, by `go build -overlay`.

package rest

// Config is the type of a parameter of functions of Helm's engine, which helm-render does not call.
type Config struct{}

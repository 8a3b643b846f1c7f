// registry serves the images of OCI archives from memory, with one user. Tests pull from it. An address without a
// certificate has no TLS. With an empty USER, everyone may pull and push.
//
//	registry USER PASSWORD NAME:TAG=ARCHIVE... ADDRESS[,CERTIFICATE,KEY]...
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/bcrypt"

	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 4 {
		return errors.New("usage: registry USER PASSWORD NAME:TAG=ARCHIVE... ADDRESS[,CERTIFICATE,KEY]...")
	}
	user, password := args[0], args[1]
	app, err := application(user, password)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for _, arg := range args[2:] {
		if image, archive, isImage := strings.Cut(arg, "="); isImage {
			name, tag, _ := strings.Cut(image, ":")
			if err := (pusher{app, user, password, name}).push(archive, tag); err != nil {
				return fmt.Errorf("cannot push %s: %w", archive, err)
			}
			continue
		}
		address, pair, hasPair := strings.Cut(arg, ",")
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: app}
		if !hasPair {
			go func() { failed <- server.Serve(listener) }()
			continue
		}
		certificate, key, _ := strings.Cut(pair, ",")
		go func() { failed <- server.ServeTLS(listener, certificate, key) }()
	}
	fmt.Println("ready")
	return <-failed
}

func application(user, password string) (http.Handler, error) {
	config := &configuration.Configuration{Storage: configuration.Storage{"inmemory": nil}}
	config.Log.Level = "warn"
	if user == "" {
		return handlers.NewApp(context.Background(), config), nil
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "registry")
	if err != nil {
		return nil, err
	}
	users := filepath.Join(directory, "htpasswd")
	if err := os.WriteFile(users, fmt.Appendf(nil, "%s:%s\n", user, hash), 0o600); err != nil {
		return nil, err
	}
	config.Auth = configuration.Auth{"htpasswd": configuration.Parameters{"realm": "test", "path": users}}
	return handlers.NewApp(context.Background(), config), nil
}

// pusher makes the requests of a client without a connection.
type pusher struct {
	handler              http.Handler
	user, password, name string
}

func (p pusher) push(archive, tag string) error {
	files, err := unpack(archive)
	if err != nil {
		return err
	}
	var index v1.Index
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		return fmt.Errorf("index.json has %d manifests: %v", len(index.Manifests), err)
	}
	blob := func(d v1.Descriptor) []byte { return files["blobs/sha256/"+d.Digest.Encoded()] }
	var manifest v1.Manifest
	if err := json.Unmarshal(blob(index.Manifests[0]), &manifest); err != nil {
		return err
	}
	if err := addLayer(files, &manifest); err != nil {
		return err
	}
	for _, part := range append(manifest.Layers, manifest.Config) {
		begun, err := p.send(http.MethodPost, "/v2/"+p.name+"/blobs/uploads/", "", nil)
		if err != nil {
			return err
		}
		at, err := url.Parse(begun.Get("Location"))
		if err != nil {
			return err
		}
		query := at.Query()
		query.Set("digest", part.Digest.String())
		if _, err := p.send(http.MethodPut, at.Path+"?"+query.Encode(), "application/octet-stream", blob(part)); err != nil {
			return err
		}
	}
	changed, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	_, err = p.send(http.MethodPut, "/v2/"+p.name+"/manifests/"+tag, v1.MediaTypeImageManifest, changed)
	return err
}

// addLayer adds a layer that no node has yet: the node has the layers of its own images.
func addLayer(files map[string][]byte, manifest *v1.Manifest) error {
	store := func(kind string, content []byte) v1.Descriptor {
		sum := digest.FromBytes(content)
		files["blobs/sha256/"+sum.Encoded()] = content
		return v1.Descriptor{MediaType: kind, Digest: sum, Size: int64(len(content))}
	}
	var layer bytes.Buffer
	writer := tar.NewWriter(&layer)
	text := []byte("from a registry\n")
	if err := writer.WriteHeader(&tar.Header{Name: "origin", Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := writer.Write(text); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	added := store(v1.MediaTypeImageLayer, layer.Bytes())
	var image v1.Image
	if err := json.Unmarshal(files["blobs/sha256/"+manifest.Config.Digest.Encoded()], &image); err != nil {
		return err
	}
	image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, added.Digest)
	image.History = nil
	config, err := json.Marshal(image)
	if err != nil {
		return err
	}
	manifest.MediaType = v1.MediaTypeImageManifest
	manifest.Config = store(v1.MediaTypeImageConfig, config)
	manifest.Layers = append(manifest.Layers, added)
	return nil
}

func (p pusher) send(method, path, kind string, body []byte) (http.Header, error) {
	request := httptest.NewRequest(method, path, bytes.NewReader(body))
	request.SetBasicAuth(p.user, p.password)
	request.Header.Set("Content-Type", kind)
	response := httptest.NewRecorder()
	p.handler.ServeHTTP(response, request)
	if response.Code >= 300 {
		return nil, fmt.Errorf("%s %s: status %d: %s", method, path, response.Code, response.Body)
	}
	return response.Header(), nil
}

func unpack(archive string) (map[string][]byte, error) {
	file, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	files := map[string][]byte{}
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[strings.TrimPrefix(header.Name, "./")], err = io.ReadAll(reader); err != nil {
			return nil, err
		}
	}
}

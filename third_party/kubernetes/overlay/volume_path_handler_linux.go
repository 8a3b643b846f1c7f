//go:build linux

// Takes the place of kubelet's file of the same name, by `go build -overlay`.
//
// For every block volume kubelet attaches a loop device on top of the volume's own device, so that
// the device stays open and its number is not given to another volume while a container has it. Our
// CSI plugin holds a descriptor of each published device instead (docs/adr/0023). So AttachFileDevice
// and DetachFileDevice do nothing here, and no second device is stacked on ours.

package volumepathhandler

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"k8s.io/apimachinery/pkg/types"
)

// AttachFileDevice takes no lock: it answers with the device itself.
func (v VolumePathHandler) AttachFileDevice(path string) (string, error) {
	if _, err := blockDevice(path); err != nil {
		return "", fmt.Errorf("cannot use %s as a block volume: %w", path, err)
	}
	return path, nil
}

// DetachFileDevice has nothing to undo.
func (v VolumePathHandler) DetachFileDevice(path string) error { return nil }

// GetLoopDevice finds no lock, because none is ever taken.
func (v VolumePathHandler) GetLoopDevice(path string) (string, error) {
	return "", errors.New(ErrDeviceNotFound)
}

// FindGlobalMapPathUUIDFromPod finds, below pluginDir, the bind mount named like the pod that
// shows the same device as the pod's own link mapPath. The answer is empty if there is none.
func (v VolumePathHandler) FindGlobalMapPathUUIDFromPod(pluginDir, mapPath string, podUID types.UID) (string, error) {
	target, err := os.Readlink(mapPath)
	if err != nil {
		return "", fmt.Errorf("cannot read the device link of pod %s: %w", podUID, err)
	}
	want, err := blockDevice(target)
	if err != nil {
		return "", fmt.Errorf("the device link of pod %s: %w", podUID, err)
	}
	found := ""
	err = filepath.WalkDir(pluginDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() != string(podUID) || entry.Type()&os.ModeDevice == 0 {
			return nil
		}
		if device, err := blockDevice(path); err == nil && device == want {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("cannot search %s for the device of pod %s: %w", pluginDir, podUID, err)
	}
	return found, nil
}

// blockDevice gives the number of the block device that path names.
func blockDevice(path string) (uint64, error) {
	var status unix.Stat_t
	if err := unix.Stat(path, &status); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if status.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%s is not a block device", path)
	}
	return uint64(status.Rdev), nil
}

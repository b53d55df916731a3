// Package posixtest runs go-fuse's collection of POSIX tests on a folder.
package posixtest

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// TestPosix gives each test of the collection an empty folder below POSIX_DIR. Go visits the entries of a map
// in random order. That is fine: no test may depend on another.
func TestPosix(t *testing.T) {
	below, ok := os.LookupEnv("POSIX_DIR")
	if !ok {
		t.Skip("POSIX_DIR names no folder")
	}
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			folder, err := os.MkdirTemp(below, "t")
			if err != nil {
				t.Fatal(err)
			}
			test(t, folder)
			if err := os.RemoveAll(folder); err != nil {
				t.Error("what it left cannot be removed: ", err)
			}
		})
	}
}

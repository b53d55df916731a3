// Reads manifests of Kubernetes from its standard input, and decodes each document into the type of the
// Kubernetes API that it names. A field that the type does not have, a field twice, and a value of another
// type are errors. Prints a line for each document. It is built outside of the repository: make csi-tools.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigs "sigs.k8s.io/yaml"
)

func main() {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	failed := false
	for {
		text, err := documents.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		var any map[string]any
		if err := sigs.UnmarshalStrict(text, &any); err == nil && len(any) == 0 {
			continue
		}
		_, kind, err := strict.Decode(text, nil, nil)
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "%v: %v\n", any["kind"], err)
			continue
		}
		fmt.Printf("ok %s %s\n", kind.GroupVersion(), kind.Kind)
	}
	if failed {
		os.Exit(1)
	}
}

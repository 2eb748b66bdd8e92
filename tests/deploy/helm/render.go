// Renders a chart as `helm template` does, as far as this repository's chart asks for it: values files over values.yaml, named
// templates, Sprig's functions, and include, required, toYaml and .Files.Get beside them.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run render.go -namespace aludel CHART [VALUES.yaml...]
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type object = map[string]interface{}

// files is what templates see as .Files.
type files struct{ chart string }

func (f files) Get(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(f.chart, name))
	return string(data), err
}

// read has a YAML file as Helm has it: through JSON, so that every number is a float.
func read(path string) (object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var parsed object
	if err := yaml.Unmarshal(text, &parsed); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	data, err := json.Marshal(parsed)
	if err != nil {
		return nil, err
	}
	var values object
	return values, json.Unmarshal(data, &values)
}

// merge puts `over` above `values`; a null takes a value away.
func merge(values, over object) {
	for name, value := range over {
		above, isObject := value.(object)
		below, wasObject := values[name].(object)
		switch {
		case value == nil:
			delete(values, name)
		case isObject && wasObject:
			merge(below, above)
		default:
			values[name] = value
		}
	}
}

func render(chart, namespace string, valueFiles []string) (string, error) {
	values, err := read(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return "", err
	}
	for _, path := range valueFiles {
		over, err := read(path)
		if err != nil {
			return "", err
		}
		merge(values, over)
	}
	root := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // as Helm does
	delete(functions, "expandenv")
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		data, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(data), "\n"), err
	}
	root.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return "", err
	}
	sort.Strings(paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if _, err := root.New(filepath.Base(path)).Parse(string(text)); err != nil {
			return "", err
		}
	}
	release := object{"Name": "aludel", "Namespace": namespace, "Service": "Helm"}
	data := object{"Values": values, "Release": release, "Files": files{chart}}
	var out bytes.Buffer
	for _, path := range paths {
		if filepath.Ext(path) != ".yaml" {
			continue
		}
		out.WriteString("---\n")
		if err := root.ExecuteTemplate(&out, filepath.Base(path), data); err != nil {
			return "", err
		}
		out.WriteString("\n")
	}
	return strings.ReplaceAll(out.String(), "<no value>", ""), nil
}

func main() {
	namespace := flag.String("namespace", "default", "the release's")
	flag.Parse()
	if flag.NArg() < 1 {
		log.Fatal("render: which chart?")
	}
	text, err := render(flag.Arg(0), *namespace, flag.Args()[1:])
	if err != nil {
		log.Fatalf("render: %v", err)
	}
	fmt.Print(text)
}

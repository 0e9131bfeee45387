// health says what two deployment tools make of Kubernetes objects: kstatus (Flux, Helm 4, kpt) by calling its library, and
// Argo CD by running a health script the way Argo CD does.
//
//	health SCRIPT <OBJECTS
//
// OBJECTS is a stream of JSON objects; each becomes one line {"kstatus", "kstatusMessage", "argo", "argoMessage"}.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Kstatus        string `json:"kstatus"`
	KstatusMessage string `json:"kstatusMessage"`
	Argo           string `json:"argo"`
	ArgoMessage    string `json:"argoMessage"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	if len(os.Args) != 2 {
		return errors.New("usage: health SCRIPT <OBJECTS")
	}
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	for objects := json.NewDecoder(in); ; {
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		computed, err := status.Compute(object)
		if err != nil {
			return err
		}
		argo, message, err := argoHealth(string(script), object)
		if err != nil {
			return fmt.Errorf("%s: %w", object.GetName(), err)
		}
		line := verdict{string(computed.Status), computed.Message, argo, message}
		if err := json.NewEncoder(out).Encode(line); err != nil {
			return err
		}
	}
}

// argoHealth runs the script as Argo CD does: Lua without the libraries for strings, files and mathematics, one second at
// most, the object in the global obj, the answer a table with status and message.
func argoHealth(script string, object *unstructured.Unstructured) (string, string, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return "", "", err
		}
	}
	state.SetGlobal("print", lua.LNil)
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(limit)
	state.SetGlobal("obj", toLua(state, object.Object))
	if err := state.DoString(script); err != nil {
		return "", "", err
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", fmt.Errorf("the script returned %s, not a table", state.Get(-1).Type())
	}
	health := answer.RawGetString("status").String()
	switch health {
	case "Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown":
	default:
		return "", "", fmt.Errorf("the script returned the status %q", health)
	}
	message, _ := answer.RawGetString("message").(lua.LString)
	return health, string(message), nil
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case float64:
		return lua.LNumber(value)
	case int64:
		return lua.LNumber(value)
	case string:
		return lua.LString(value)
	case []any:
		table := state.CreateTable(len(value), 0)
		for _, item := range value {
			table.Append(toLua(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(value))
		for key, item := range value {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	}
	return lua.LNil
}

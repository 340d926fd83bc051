package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCommand) Help() string {
	return `bash: source <(walpost completion bash)

zsh: walpost completion zsh > "${fpath[1]}/_walpost"

fish: walpost completion fish > ~/.config/fish/completions/walpost.fish`
}

func (c completionCommand) Run(r *run) error {
	script := map[string]func(io.Writer, *kong.Application) error{
		"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion,
	}[c.Shell]
	return script(r.Stdout, r.parsed.Model)
}

func bashCompletion(w io.Writer, model *kong.Application) error {
	var names []string
	var cases strings.Builder
	word := func(path string, command *kong.Node) {
		words := positionalValues(command)
		for _, flag := range flagsOf(command) {
			words = append(words, "--"+flag.Name)
			if flag.Tag.Negatable != "" {
				words = append(words, "--no-"+flag.Name)
			}
		}
		fmt.Fprintf(&cases, "    %s) words=%q ;;\n", path, strings.Join(words, " "))
	}
	for _, command := range model.Children {
		names = append(names, command.Name)
		if len(command.Children) == 0 {
			word(command.Name+`\ *`, command)
			continue
		}
		for _, child := range command.Children {
			word(command.Name+`\ `+child.Name+`\ *`, child)
		}
		// Behind those of its children, which are tried first.
		fmt.Fprintf(&cases, "    %s) words=%q ;;\n", command.Name+`\ *`, strings.Join(childNames(command), " "))
	}
	_, err := fmt.Fprintf(w, `# walpost completion for bash
_walpost() {
  local words=%q
  if ((COMP_CWORD > 1)); then
    case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in
%s    *) words="" ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -o default -F _walpost walpost
`, strings.Join(names, " "), cases.String())
	return err
}

func zshCompletion(w io.Writer, model *kong.Application) error {
	var names, cases strings.Builder
	arguments := func(path string, command *kong.Node) {
		fmt.Fprintf(&cases, "    %s) _arguments", path)
		for _, flag := range flagsOf(command) {
			// Brackets and colons would end the description.
			help := strings.NewReplacer("[", "(", "]", ")", ":", " ").Replace(flag.Help)
			spec := fmt.Sprintf("--%s[%s]", flag.Name, help)
			if flag.Tag.Negatable != "" {
				spec = fmt.Sprintf("--no-%s[%s]", flag.Name, help) // the other one is the default
			}
			if !flag.IsBool() {
				spec = fmt.Sprintf("--%s=[%s]:%s:%s", flag.Name, help, flag.Name, zshValues(flag))
			}
			fmt.Fprintf(&cases, " \\\n      %s", shellQuote(spec))
		}
		if values := positionalValues(command); len(values) > 0 {
			fmt.Fprintf(&cases, " \\\n      %s", shellQuote(fmt.Sprintf("1:value:(%s)", strings.Join(values, " "))))
		}
		cases.WriteString(" ;;\n")
	}
	for _, command := range model.Children {
		fmt.Fprintf(&names, "    %s\n", shellQuote(command.Name+":"+command.Help))
		if len(command.Children) == 0 {
			arguments(command.Name, command)
			continue
		}
		fmt.Fprintf(&cases, "    %s) compadd %s ;;\n", command.Name, strings.Join(childNames(command), " "))
		for _, child := range command.Children {
			arguments(shellQuote(command.Name+" "+child.Name), child)
		}
	}
	_, err := fmt.Fprintf(w, `#compdef walpost
_walpost() {
  local -a commands=(
%s  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  shift words
  ((CURRENT--))
  local command=$words[1]
  case $command in
    %s) if ((CURRENT > 2)); then
      command="$command $words[2]"
      shift words
      ((CURRENT--))
    fi ;;
  esac
  case $command in
%s  esac
}
if [ "$funcstack[1]" = _walpost ]; then _walpost "$@"; else compdef _walpost walpost; fi
`, names.String(), strings.Join(parents(model), "|"), cases.String())
	return err
}

func zshValues(flag *kong.Flag) string {
	switch {
	case flag.Enum != "":
		return "(" + strings.Join(flag.EnumSlice(), " ") + ")"
	case flag.Name == "config":
		return "_files"
	}
	return ""
}

func fishCompletion(w io.Writer, model *kong.Application) error {
	var script strings.Builder
	script.WriteString("# walpost completion for fish\ncomplete -c walpost -f\n")
	arguments := func(condition string, command *kong.Node) {
		condition = shellQuote(condition)
		if values := positionalValues(command); len(values) > 0 {
			fmt.Fprintf(&script, "complete -c walpost -n %s -a %s\n", condition, shellQuote(strings.Join(values, " ")))
		}
		for _, flag := range flagsOf(command) {
			value := ""
			switch {
			case flag.IsBool():
			case flag.Enum != "":
				value = " -x -a " + shellQuote(strings.Join(flag.EnumSlice(), " "))
			case flag.Name == "config":
				value = " -r -F"
			default:
				value = " -x"
			}
			name := flag.Name
			if flag.Tag.Negatable != "" {
				name = "no-" + name // the other one is the default
			}
			fmt.Fprintf(&script, "complete -c walpost -n %s -l %s%s -d %s\n", condition, name, value, shellQuote(flag.Help))
		}
	}
	for _, command := range model.Children {
		fmt.Fprintf(&script, "complete -c walpost -n __fish_use_subcommand -a %s -d %s\n", command.Name, shellQuote(command.Help))
		seen := "__fish_seen_subcommand_from " + command.Name
		if len(command.Children) == 0 {
			arguments(seen, command)
			continue
		}
		children := strings.Join(childNames(command), " ")
		fmt.Fprintf(&script, "complete -c walpost -n %s -a %s\n", shellQuote(seen+"; and not __fish_seen_subcommand_from "+children), shellQuote(children))
		for _, child := range command.Children {
			arguments(seen+"; and __fish_seen_subcommand_from "+child.Name, child)
		}
	}
	_, err := io.WriteString(w, script.String())
	return err
}

// parents are the commands that have commands of their own.
func parents(model *kong.Application) []string {
	var names []string
	for _, command := range model.Children {
		if len(command.Children) > 0 {
			names = append(names, command.Name)
		}
	}
	return names
}

func childNames(command *kong.Node) []string {
	var names []string
	for _, child := range command.Children {
		names = append(names, child.Name)
	}
	return names
}

func flagsOf(command *kong.Node) []*kong.Flag {
	var flags []*kong.Flag
	for _, group := range command.AllFlags(true) {
		flags = append(flags, group...)
	}
	return flags
}

func positionalValues(command *kong.Node) []string {
	var values []string
	for _, positional := range command.Positional {
		if positional.Enum != "" {
			values = append(values, positional.EnumSlice()...)
		}
	}
	return values
}

// shellQuote is the same in bash, zsh and fish.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

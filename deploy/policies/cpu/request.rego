# Which requests are answered. Evaluated in the gateway, for each request, over its shape and never its text.
#
# Asked as data.deltagate.request.decision over
#   input.caller, input.model     names
#   input.questions               how many, and input.kinds {choice, score, noul} how many of each
#   input.tokens                  in the first step, and input.sequences how many (null when not known); both are 0
#                                 when no pass is needed, as for a choice of one option
# Limits and lists are in data.json; "*" in a list stands for everyone.
package deltagate.request

import rego.v1

default decision := {"allow": false, "reasons": ["the bundle reached no decision"]}

decision := {"allow": count(reasons) == 0, "reasons": sort(reasons)}

reasons contains "caller is not on the list" if not listed(input.caller, data.config.callers)

reasons contains "model is not on the list" if not listed(input.model, data.config.models)

listed(name, list) if {
	is_string(name)
	"*" in list
}

listed(name, list) if {
	is_string(name)
	name in list
}

reasons contains "number of questions is out of bounds" if {
	not within(input.questions, 1, data.config.limits.questions)
}

reasons contains "number of tokens is out of bounds" if not within(input.tokens, 0, data.config.limits.tokens)

reasons contains "number of sequences is out of bounds" if {
	input.sequences != null
	not within(input.sequences, 0, data.config.limits.sequences)
}

reasons contains "number of sequences is not given" if not has_sequences

has_sequences if "sequences" in object.keys(input)

reasons contains "kinds do not add up to the questions" if not sum([n | some n in input.kinds]) == input.questions

reasons contains "a kind of question is not allowed" if {
	some kind, n in input.kinds
	n != 0
	not kind in data.config.kinds
}

within(n, least, most) if {
	is_number(n)
	is_number(most)
	n >= least
	n <= most
}

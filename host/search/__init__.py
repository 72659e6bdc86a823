"""The search among tools: pure, without a clock and without I/O.

words      the words of a text
stems      the stems of words
synonyms   the words of the trade that stand for each other
tool_text  the words of one tool, by weight
index      the tools that one viewer sees, in the order in which they fit a query
"""

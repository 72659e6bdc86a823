"""The words of the trade that stand for each other, and what a query asks for.

The table is about the things that servers are for: trackers, wikis, repositories, files, the web, browsers, phones,
spreadsheets, texts, charts, maps, chats, mail, calendars, databases, containers, and plain text, numbers and time.
"""

from __future__ import annotations

import re

from host.search.stems import stem
from host.search.words import words
from host.slices import pause

SYNONYM = 0.7
"""The weight of a synonym, where the word itself has 1."""
READ = "read"

# A line is a set of words that stand for each other. Before `>`: words that also stand for those behind it, but not the
# other way. Before `:`: what the line's words ask for, if a query begins with one of them.
_TABLE = """
create: create add new make insert generate register append compose build draft put
create: write compose
create: store save remember keep record
create: upload import load attach push
create: send post publish message tell announce notify inform share say
create: reply answer respond response
create: start launch run begin execute trigger invoke
open > create start launch show
create: raise report file > create
create: install deploy
create: invite > add member
create: reserve allocate book
create: stage > add
create: commit > save
create: log > record track add
delete: delete remove erase drop clear discard forget trash throw wipe purge destroy rid
delete: uninstall > remove
delete: undo reset revert unstage rollback restore
delete: stop terminate kill end cancel quit close abort halt shut
delete: unsubscribe unfollow leave > remove stop
read: get show read fetch retrieve view display see describe detail give look information content info
read: list enumerate browse available overview all
read: which what > list get
read: search find look query locate lookup seek discover
read: google > search web
read: check validate verify test inspect
read: status state progress
read: download > get save export
read: export save
read: summarize summarise summary overview brief
read: parse extract
read: count number total
read: compare diff difference change
read: calculate compute evaluate math arithmetic
read: monitor watch track observe
read: wait until
read: draw plot visualize visualise illustrate sketch chart graph diagram generate
read: explain > describe
read: who whose > user person member author
read: where > location place
read: when > date time
read: how > get
update: update edit change modify set alter rewrite patch fix adjust correct
update: replace swap substitute change
update: rename call name title
update: move relocate transfer put shift drag
update: copy duplicate clone fork
update: merge join combine land unify
update: split separate divide
update: convert turn transform translate
update: approve confirm accept agree
update: reject deny refuse decline dismiss
update: complete finish close tick resolve
update: assign hand allocate assignee responsible owner
update: highlight mark color colour shade
update: sort order arrange
update: lock protect password encrypt
update: unlock unprotect
update: rotate orientation landscape portrait
update: resize size
update: freeze pin > pane visible
several multiple many batch bulk
once > multiple batch
everything entire whole all full
every > all
last latest recent newest > history log list
earlier previous > history version
nearby near close > place location
press click tap push hit touch
type enter fill input
scroll swipe
navigate go visit
go visit > open url
back return previous
follow watch watcher subscribe
whenever > monitor
choose select pick option
hover mouse
issue ticket bug story defect problem
task todo item
sprint iteration
backlog later postpone
worklog hour work > time log
estimate effort
deadline due date
release version
milestone release
epic > issue
pr > pull request
branch fork
repository repo codebase project
source code
diff patch change
modification change
directory folder
text docx doc
letter contract > text
docx > word
word > text
picture image photo graphic logo icon illustration
screenshot picture image capture snapshot
phone mobile device smartphone android iphone ios tablet handset
app application program
home back volume > button
gps location coordinate latitude longitude position
coordinate latitude longitude geocode
place restaurant shop hotel cafe store
address street
height elevation altitude
high > height elevation
route way path direction travel trip
drive bus train walk > direction travel
far > distance
region district province country city state
website site web page internet
website site > browser url
url link address website
link > attach
popup dialog alert prompt
dropdown select option
form field
cookie storage
request traffic call > network
javascript js script code
crash error exception failure
error warning > message log console
console log
dark light theme > color scheme
user person people member employee account colleague
who > people
profile account
team channel group
chat slack conversation message
dm > message user
emoji reaction emoticon thumb
comment remark note annotation feedback
review > comment
wiki confluence
wiki > page
article page entry
encyclopedia wikipedia
paper article study publication
scientific academic > paper research
cite citation reference
keyword label tag
spreadsheet excel workbook xlsx worksheet sheet
worksheet sheet tab
formula calculation
bar > column
macro vba
row line
header heading title
section chapter heading
chapter section
caption > title
bold italic underline font > format style text
background fill > color shade format
format style layout
center > alignment
border padding margin > format
bullet list
footnote reference
page break
wide width
tall height
size width height dimension
big large > size
permission access restriction restrict permit allow right
allowed permitted > restrict validation
manager group > user
secret credential password
hash checksum digest sha256 sha md5
jwt token bearer
encode decode escape
average mean median deviation statistics
percentage percent share proportion
part share > proportion pie
trend > line
correlation relationship > scatter
distribution spread frequency histogram
hierarchy tree structure
outline structure heading
flow process step
cause reason > fishbone
reports boss > organization
company organization
network relationship connection
connection relation relationship link
memory remember > knowledge
know known knowledge > memory
forget > knowledge memory
knowledge fact observation
person people > entity
comma > csv
time duration hour minute
clock > time
timezone zone > time
date day calendar
week month year > date
temperature celsius fahrenheit > unit convert
kilometer mile meter inch kilogram pound > unit convert
binary hexadecimal octal hex > base
random dice uuid password
network subnet > ip cidr
newer older > version compare
cron schedule
job > cron
card > luhn
pattern regex expression
text string
duplicate > unique
attachment > file
queue pending waiting
customer desk support > service
sla service level
video recording record film
clipboard copied paste
mail email
meeting event appointment calendar
table database
query sql
container docker
credit balance usage
price money cost
many much > count
next > transition
blocked depends > link dependency
template boilerplate
map > location
graph > network
notify notification > watcher alert
subtask child sub > parent children issue
spent booked > time worklog log
scrum kanban agile > board sprint
overdue > date deadline
analytics visit visitor popular > view statistics
since until > date
root square power > math expression
character letter > char count
timestamp epoch unix > datetime time
growth trend > line time
donut > pie
total sum > formula calculate math
rule > conditional validation
dropdown > validation list
wider narrower fit > width column
spider scraper > crawl scrape
web website site > scrape crawl url
scrape crawl > web page
switch > checkout branch
uncommitted unstaged unsaved > change diff status
ci build check pass > status
sync refresh > update
eta > time distance
around > place nearby
rating opening hours > place detail
hold > long press
apk ipa > app install
emulator simulator > device
logcat > log device
database db > data source query
dom html element > snapshot page
viewport window > resize browser
execute > evaluate code
tooltip > hover
checklist > task
pdf > convert document
subpage > page children
incident > issue ticket
tracker > jira issue
handbook kb intranet manual > wiki confluence page
chrome firefox > browser
report manuscript essay thesis > document
passage > paragraph text
tie attach > link relation
place position > insert add
teammate coworker staff everybody anyone somebody participant > user
attribute > field property
kind sort > type
gist digest condense short > summary summarize
questionnaire survey > form
nested below under beneath > children tree
similar alike neighbouring > related
external > remote
gadget hardware > device
photograph > screenshot image
informed > watcher
effort > worklog time
wall > board
initiative theme > epic
helpdesk > service desk
support > service desk customer
sentence selected > inline text
private confidential secret visible hidden > restriction permission
able > permission allowed
correct broken well formed > validate
tiny mini > sparkline
breakdown crosstab group > pivot
alias > name
sticky > note
audio sound music > media
rate rating complain opinion quality useful > feedback
literature scholarly journal arxiv science > paper research
implementation function snippet > code
lat lon lng > coordinate geocode
locate > geocode
works knows likes lives > relation entity observation
sideways upside > orientation
discussion > thread conversation
ok sign > approve
finished complete final > done completion
o'clock today > current time
reachable online ping working alive > connectivity test
trivia highlight point > fact
subject > topic
appearance look > style format
justify left right > alignment
candidate eligible > assignable
choice possibility value > option
workflow > transition status
started progress reopen > transition status
delegate charge give > assign
someday unplanned > backlog
module > component
inbox > queue
client > customer
breach agreed target > sla
late > due sla date
waiting > dependency
often viewed read > view statistics
coin lottery pick > random
shuffle > random
fingerprint > hash
crontab recurring recurrence > cron schedule
creditcard > luhn
glyph symbol > char unicode
claim > jwt token
quartile outlier > boxplot
density > violin
bin > histogram
area zone > district region
axis scale > axes
combination combine both > dual
ishikawa root why > fishbone cause
procedure decision > flow
conversion stage > funnel
gauge full level > liquid percent
brainstorm idea > mind map
ceo subordinate manager > organization
itinerary journey > path route
spider dimension > radar
overlap intersection common > venn
versus against depend > scatter
gain loss rise fall > waterfall
frequent > word cloud frequency
preference configuration > settings
empty blank > clear
rank ascending descending alphabetical largest smallest highest lowest > sort
dedupe distinct repeated > duplicate unique
precede origin source > trace
solve > goal
hide unhide print > layout
automatic automatically greater less > conditional
forbid prevent accept > validation
consumption remaining left spent quota > usage credit
modified changed > diff unstaged status
working tree local > status unstaged
record > commit
revision sha > commit show
own > fork
hike mountain sea > elevation
nearest closest around > place search
cinema bar museum pharmacy hospital > place
signin authenticate logon > login
give return > release
front active > foreground
force > terminate
twice > double
controls widget button > element
fake pretend spoof > location
died broke freeze hang stop > crash
sequence steps > batch command
myself bot whoami > self
smaller bigger maximize > resize
javascript > evaluate console
stylesheet css > media
structure accessibility > snapshot
room > channel
like heart smile > reaction
organize organise split decompose > plan task
tick cross check > mark done
contents toc > outline section
raw > xml
zebra striped stripe second > alternating
marker > anchor
written posted > author
margin room space > padding
bibliography source > footnote endnote
closing end > endnote
bin > delete
typo spelling mistake > edit replace
occurrence everywhere > replace all
quote > reference
picture > insert image
photo > picture add
signature > protect
development evolution course timeline > line trend
comparison side > bar column compare
stack cumulative > area
slice composition makeup > pie proportion
skill strength weakness > radar
choropleth heatmap state > district map
bridge > waterfall
money energy supply transfer > flow sankey
bucket age > histogram
friend acquaintance > network relationship
disk usage > treemap size
guid ulid flip roll > random
weekday birthday age old leap > date
sentence > count
plus minus times divided multiply add subtract > math expression
levenshtein identical > diff compare
domain hostname subdomain > url parse
mph km kg lb ounce gallon liter litre feet > convert unit
caret tilde satisfy > semver version range
well invalid syntax > validate format
value number figure > range cell
block area > range
hyperlink > link
paste > copy range
subtotal grand > pivot
dependent precedent > trace formula
drop > dropdown delete
beginning start first head > head read
tail > last read
recursive subfolder > tree directory
modified changed created > info date
online internet > search web
news > search
keep eye > monitor
alert inform tell > notify monitor
live > interact browser
star fork popular > repository search
maintainer developer > user
continuous integration pipeline > status check
squash rebase > merge
index > add
ping > post message
direct private > message
today yesterday latest > history recent
member > user list
workspace > user list
entry row record > query page
block > paragraph
enter > press key
login > fill form
video > screen recording
sleep pause > wait
map > place
contract invoice agreement > document
presentation slide > document
question > reply respond
photo > media image
email > message user
change log > history
meaning > describe info
webpage homepage > web page
mindmap > mind map
flowchart > flow diagram
wordcloud > word cloud
filename > file name
changelog > history version
written write
wrote write
sent send
found find
made make
told tell
seen see
drawn draw
gone go
ran run
"""

_FORMS = {
    r"\b[A-Z][A-Z0-9]+-\d+\b": "issue key jira",
    r"https?://|\bwww\.|\b[\w-]+\.(?:com|org|net|io|dev|edu|gov)\b": "url website",
    r"[\w.]+@[\w.]+": "email user",
    r"\b[\w-]+\.(?:txt|md|py|js|ts|json|ya?ml|toml|log|ini|conf|html?|sh|go|rs|java|zip|docx?|pdf|csv|xlsx?)\b": "file",
    r"\.(?:xlsx?|xlsm|ods)\b": "workbook excel",
    r"\.csv\b": "csv",
    r"\.docx?\b": "word text",
    r"\.(?:png|jpe?g|gif|svg|webp)\b": "image",
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b": "ip address",
    r"(?<![.\d])\d+\.\d+\.\d+(?![.\d])": "version",
    r"#[0-9a-fA-F]{6}\b": "color hex",
    r"(?<!\w)#[a-z][\w-]+": "channel",
    r"\b(?:get|got) rid of\b|\b(?:throw|take|cross|pull|strip|put)\b.{0,30}\b(?:away|off|out)\b": "remove",
    r"\bhow (?:many|much)\b": "count",
    r"\bhow (?:far|long does it take)\b": "distance time",
    r"\bhow (?:big|large|heavy)\b": "size",
    r"\bhow (?:do|can|would) (?:i|we|you) (?:get|go) (?:to|from)\b": "directions",
    r"\blook(?:ing)? for\b": "search",
    r"\blook(?:ing)? (?:at|into)\b": "view",
    r"\bset(?:ting)? up\b": "create",
    r"\bturn\b.{0,30}\binto\b": "convert",
    r"\bfill(?:ed|ing)? (?:in|out)\b": "fill form",
    r"\b(?:hold|press)(?:ing)? (?:down|and hold)\b": "long press",
    r"\b(?:write|note|jot) down\b": "add note",
    r"\bsign off\b": "approve",
    r"\b(?:tick|check) off\b": "mark done",
    r"\bup to date\b": "update",
    r"\bhand(?:ed|ing)? over\b": "assign",
    r"\bat once\b|\bin one go\b": "multiple batch",
    r"\bput back\b": "restore reset",
    r"\bfind out\b": "get",
}
"""Words for what has a form of its own."""

_QUESTION = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|why|(?:can|could|may|should|will)\b(?! you\b))\b", re.IGNORECASE
)


_synonyms: dict[str, dict[str, float]] = {}
"""By stem: the stems that stand for it, with what they count."""
_intents: dict[str, str] = {}
"""By stem of a verb."""
_are_read = False


async def read_synonyms() -> None:
    """Read the table; it takes some milliseconds, once. Without it, words stand for themselves alone."""
    global _are_read
    if _are_read:
        return
    for line in _TABLE.strip().splitlines():
        await pause()
        intent, _, rest = line.rpartition(": ")
        left, _, right = (set(map(stem, side.split())) for side in rest.partition(" > "))
        for word in left:
            _synonyms.setdefault(word, {}).update(dict.fromkeys((right or left) - {word}, SYNONYM))
            if intent:
                _intents.setdefault(word, intent)
    _are_read = True


def terms_of(query: str) -> list[dict[str, float]]:
    """The terms of a query: for each word the stems that count for it, with their weights, from 0 to 1."""
    named = [stem(word) for form, means in _FORMS.items() if re.search(form, query) for word in means.split()]
    return [{**_synonyms.get(word, {}), word: 1.0} for word in dict.fromkeys([*words(query), *named])]


def intent_of(text: str) -> str | None:
    """What the first verb of a query or of a tool's name is for: create, delete, read or update; None if it has none
    that is known. A question is for reading."""
    if _QUESTION.match(text):
        return READ
    return next((_intents[word] for word in words(text) if word in _intents), None)

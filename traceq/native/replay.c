/* Simulation of the steps: from blocking call to blocking call, and launch to launch.
 *
 * native_simulation.py calls these functions and documents them; simulation.py has the
 * same in Polars, as the reference, and explains how the steps are replayed.
 */

#include "columns.h"

/* Where there is no group: of a blocking call, or of what nothing waits for. */
#define NO_GROUP UINT32_MAX

/* The columns of the host's time and of the GPU's work: native_simulation.Steps says what
 * each of them is. */
enum {
    WORKED, STAYS, LAUNCH, LATE, EPOCH, GROUP, LATENCY, GAP, DUR, WAIT_START, WAIT_END, STEPS
};
static const char STEP_FORMATS[] = "ggIgIIgggII";

/* What is gone through in order, groups and blocking calls: see native_simulation.Order. */
enum { ITEM, LANE, ITS_EPOCH, AFTER, WAITS_FOR, BLOCKS, RESUME, BEHIND, ORDER };
static const char ORDER_FORMATS[] = "IIIIIIgg";

/* ------------------------------------------------------------------------ The loops */

/* Write how much the host has worked at each edge of the pieces of its time. */
static void sum_work(const double *own, const double *left, size_t count, double scale,
                     double *worked, Watch *watch) {
    double sum = worked[0] = 0.0;
    for (size_t piece = 0; piece < count && may_go_on(watch, 1); piece++) {
        sum += own[piece] * left[piece] * scale;
        worked[piece + 1] = sum;
    }
}

/* The host's own work at the begin and the end of an epoch. */
static double epoch_begin(const Column *steps, size_t epoch) {
    const double *worked = steps[WORKED].values;
    const uint32_t *end = steps[WAIT_END].values;
    return worked[epoch ? end[epoch - 1] : 0];
}

static double epoch_end(const Column *steps, size_t epoch) {
    const double *worked = steps[WORKED].values;
    const uint32_t *start = steps[WAIT_START].values;
    if (epoch < steps[WAIT_START].length) return worked[start[epoch]];
    return worked[steps[WORKED].length - 1];
}

/* A piece of work, and the sum of what was before it. */
typedef struct {
    double total, launched, gap, time, before, reach;
} Piece;

/* Go on to the next: ``reach`` is when its launch lets it begin, counted from the begin
 * of its epoch and without the time of the work before it. */
static void next_piece(const Column *steps, size_t row, double scale, Piece *piece) {
    const double *worked = steps[WORKED].values;
    double stays = ((const double *)steps[STAYS].values)[row];
    size_t epoch = ((const uint32_t *)steps[EPOCH].values)[row];
    double at = worked[((const uint32_t *)steps[LAUNCH].values)[row]];
    piece->launched = at - epoch_begin(steps, epoch) +
                      ((const double *)steps[LATE].values)[row];
    /* With removed work the gap before it is removed too. */
    piece->gap = stays > 0 ? ((const double *)steps[GAP].values)[row] * scale : 0.0;
    piece->time =
        piece->gap + ((const double *)steps[DUR].values)[row] * stays * scale;
    piece->total += piece->time;
    piece->before = piece->total - piece->time;
    piece->reach = ((const double *)steps[LATENCY].values)[row] + piece->launched -
                   piece->gap - piece->before;
}

/* Write what the work of each group takes, and when its launches let it be done. */
static void sum_groups(const Column *steps, double scale, double *time, double *reach,
                       Watch *watch) {
    const uint32_t *group = steps[GROUP].values;
    size_t count = steps[GROUP].length;
    Piece piece = {0};
    double latest = 0.0;
    for (size_t row = 0; row < count && may_go_on(watch, 1); row++) {
        next_piece(steps, row, scale, &piece);
        int first = !row || group[row] != group[row - 1];
        time[group[row]] = first ? piece.time : time[group[row]] + piece.time;
        if (first || piece.reach > latest) latest = piece.reach;
        reach[group[row]] = latest + piece.before + piece.time;
    }
}

static double greater(double one, double other) { return one > other ? one : other; }

static double greatest(const double *values, size_t count) {
    double found = values[0];
    for (size_t at = 1; at < count; at++) found = greater(found, values[at]);
    return found;
}

/* A round of the steps: what is known of groups, lanes and epochs. */
typedef struct {
    double *time, *reach, *done, *entered, *lanes, *host;
} Round;

/* Go through groups and blocking calls in their order, once. */
static int play_round(const Column *steps, const Column *order, Round *round,
                      Watch *watch) {
    const uint32_t *item = order[ITEM].values, *lane = order[LANE].values;
    const uint32_t *epoch = order[ITS_EPOCH].values, *after = order[AFTER].values;
    const uint32_t *waits_for = order[WAITS_FOR].values, *blocks = order[BLOCKS].values;
    const double *resume = order[RESUME].values;
    for (size_t at = 0; at < order[ITEM].length; at++) {
        size_t mine = epoch[at];
        if (!may_go_on(watch, 1)) return 0;
        if (item[at] != NO_GROUP) {
            double ready = round->lanes[lane[at]];
            if (after[at] != NO_GROUP) ready = greater(ready, round->done[after[at]]);
            round->entered[item[at]] = ready;
            ready = greater(ready + round->time[item[at]],
                            round->host[mine] + round->reach[item[at]]);
            round->lanes[lane[at]] = round->done[item[at]] = ready;
            continue;
        }
        double now = round->host[mine] + (epoch_end(steps, mine) - epoch_begin(steps, mine));
        if (blocks[mine]) {
            int all = waits_for[mine] == NO_GROUP;
            if (all && !may_go_on(watch, order[BEHIND].length)) return 0;
            double done = all
                              ? greatest(round->lanes, order[BEHIND].length)
                              : round->done[waits_for[mine]];
            now = greater(now, done) + resume[mine];
        }
        round->host[mine + 1] = now;
    }
    return 1;
}

/* Play the rounds, and return how long the last of them took. */
static double play_rounds(const Column *steps, const Column *order, double scale,
                          int rounds, Round *round, Watch *watch) {
    size_t last = steps[WAIT_START].length, lanes = order[BEHIND].length;
    double total = 0.0, before = 0.0, began = 0.0;
    memcpy(round->lanes, order[BEHIND].values, lanes * sizeof *round->lanes);
    sum_groups(steps, scale, round->time, round->reach, watch);
    for (int number = 0; number < rounds; number++) {
        if (!play_round(steps, order, round, watch) || !may_go_on(watch, 1)) break;
        began = round->host[0];
        round->host[0] =
            round->host[last] + (epoch_end(steps, last) - epoch_begin(steps, last));
        before = total;
        total = greater(round->host[0], greatest(round->lanes, lanes));
    }
    round->host[0] = began;
    return total - before;
}

/* When work begins and is done, given when the host began each epoch and when each
 * group could begin; ``by_launch`` is a bit for each. */
typedef struct {
    double *host_ns, *begin, *done;
    uint8_t *by_launch;
} Timeline;

static void find_timeline(const Column *steps, const double *host, const double *entered,
                          double scale, double *worked_before, Timeline *line,
                          Watch *watch) {
    const uint32_t *group = steps[GROUP].values, *epoch = steps[EPOCH].values;
    worked_before[0] = 0.0;
    for (size_t at = 0; at < steps[WAIT_START].length; at++)
        worked_before[at + 1] =
            worked_before[at] + (epoch_end(steps, at) - epoch_begin(steps, at));
    Piece piece = {0};
    /* Counted without the time of the work before it, starts can be compared. */
    double ready = 0.0;
    for (size_t row = 0; row < steps[GROUP].length && may_go_on(watch, 1); row++) {
        next_piece(steps, row, scale, &piece);
        if (!row || group[row] != group[row - 1])
            ready = entered[group[row]] - piece.before;
        double reach = host[epoch[row]] + piece.reach;
        if (reach > ready) {
            line->by_launch[row / 8] |= (uint8_t)(1u << (row % 8));
            ready = reach;
        }
        line->host_ns[row] = piece.launched + worked_before[epoch[row]];
        line->done[row] = ready + piece.before + piece.time;
        line->begin[row] = line->done[row] - piece.time + piece.gap;
    }
}

/* Time of the host that a change removes a part of: spans in order that do not touch. */
typedef struct {
    Column spans[2]; /* start and end */
    double share;
    size_t next; /* of the spans, the first that is not over */
} Removed;

/* Return which part of a span is left; spans are asked for in their order. */
static double left_of(Removed *removed, size_t count, int64_t start, int64_t end) {
    double left = 1.0;
    for (size_t at = 0; at < count; at++) {
        Removed *one = &removed[at];
        const int64_t *starts = one->spans[0].values, *ends = one->spans[1].values;
        size_t length = one->spans->length;
        int64_t covered = 0;
        while (one->next < length && ends[one->next] <= start) one->next++;
        for (size_t row = one->next; row < length && starts[row] < end; row++)
            covered = plus(covered, minus(ends[row] < end ? ends[row] : end,
                                          starts[row] > start ? starts[row] : start));
        if (!covered) continue;
        double less = 1.0 - one->share * (double)covered / (double)minus(end, start);
        if (less < left) left = less;
    }
    return left;
}

/* The columns of the host's time and of the pieces in which the GPU waits, as
 * native_simulation.py has them in _SPANS and _PIECES. */
enum { START, END, AT, THING, FIRST, COUNT, FROM, TO, PIECE_WORKED, SHARE, WAITS };
static const char WAIT_FORMATS[] = "llIIllllgg";

/* Which calls were counted: a row of the host's tree is nearly always of one thing.
 * Where it is of another as well, both are kept, to be counted in the end. */
typedef struct {
    uint32_t *thing; /* of each row, or NO_GROUP before it is seen */
    uint64_t *others;
    size_t count, room;
} Seen;

/* Count a call of a thing, once; false without memory. */
static int count_call(Seen *seen, uint32_t thing, uint32_t row, uint32_t *calls) {
    if (seen->thing[row] == NO_GROUP) {
        seen->thing[row] = thing;
        calls[thing]++;
    } else if (seen->thing[row] != thing) {
        if (seen->count == seen->room) {
            seen->room = 2 * seen->room + 64;
            uint64_t *others = realloc(seen->others, seen->room * sizeof *others);
            if (!others) return 0;
            seen->others = others;
        }
        seen->others[seen->count++] = (uint64_t)thing << 32 | row;
    }
    return 1;
}

static int compare(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static void count_others(Seen *seen, uint32_t *calls) {
    if (!seen->count) return;
    qsort(seen->others, seen->count, sizeof *seen->others, compare);
    for (size_t at = 0; at < seen->count; at++)
        if (!at || seen->others[at] != seen->others[at - 1]) calls[seen->others[at] >> 32]++;
}

/* Sum up, by thing, how long the GPU waits for it and in how many calls; false without
 * memory. ``lengths`` has room for the spans of a piece. */
static int sum_waits(const Column *waits, Removed *removed, size_t changes,
                     double shortest, Seen *seen, double *lengths, double *time,
                     uint32_t *calls, Watch *watch) {
    const int64_t *start = waits[START].values, *end = waits[END].values;
    const uint32_t *at = waits[AT].values, *thing = waits[THING].values;
    const int64_t *first = waits[FIRST].values, *count = waits[COUNT].values;
    const int64_t *piece_from = waits[FROM].values, *piece_to = waits[TO].values;
    const double *worked = waits[PIECE_WORKED].values, *share = waits[SHARE].values;
    for (size_t piece = 0; piece < waits[FIRST].length; piece++) {
        size_t begin = (size_t)first[piece], spans = (size_t)count[piece];
        if (!may_go_on(watch, spans + 1)) return 0;
        double whole = 0.0;
        for (size_t row = 0; row < spans; row++) {
            int64_t from = start[begin + row], to = end[begin + row];
            if (from < piece_from[piece]) from = piece_from[piece];
            if (to > piece_to[piece]) to = piece_to[piece];
            lengths[row] = (double)minus(to, from) * left_of(removed, changes, from, to);
            whole += lengths[row];
        }
        /* Of a piece that the changes remove, nothing is left to wait for. */
        if (!(whole > 0.0)) continue;
        double rate = worked[piece] / whole, since = whole - whole * share[piece];
        double reached = 0.0;
        for (size_t row = 0; row < spans; row++) {
            reached += lengths[row];
            double waited = reached - since;
            if (waited > lengths[row]) waited = lengths[row];
            waited *= rate;
            if (waited <= shortest) continue;
            time[thing[begin + row]] += waited;
            if (!count_call(seen, thing[begin + row], at[begin + row], calls)) return 0;
        }
    }
    count_others(seen, calls);
    return 1;
}

/* ---------------------------------------------------------------- As Python calls them */

/* Return whether all numbers of a column are places in something of this length, or
 * none where that may be. */
static int are_places(const Column *column, size_t length, int or_none) {
    const uint32_t *values = column->values;
    for (size_t row = 0; row < column->length; row++)
        if (values[row] >= length && !(or_none && values[row] == NO_GROUP)) return 0;
    return 1;
}

static int steps_fit(const Column *steps, size_t groups) {
    size_t work = steps[GROUP].length, waits = steps[WAIT_START].length;
    for (int at = STAYS; at <= DUR; at++)
        if (steps[at].length != work) return refused();
    if (!steps[WORKED].length || steps[WAIT_END].length != waits ||
        !are_places(&steps[LAUNCH], steps[WORKED].length, 0) ||
        !are_places(&steps[WAIT_START], steps[WORKED].length, 0) ||
        !are_places(&steps[WAIT_END], steps[WORKED].length, 0) ||
        !are_places(&steps[EPOCH], waits + 1, 0) ||
        !are_places(&steps[GROUP], groups, 0))
        return refused();
    return 1;
}

static int order_fits(const Column *order, size_t groups, size_t waits) {
    size_t items = order[ITEM].length;
    const uint32_t *item = order[ITEM].values, *epoch = order[ITS_EPOCH].values;
    int fits = order[LANE].length == items && order[ITS_EPOCH].length == items &&
               order[AFTER].length == items && order[WAITS_FOR].length == waits &&
               order[BLOCKS].length == waits && order[RESUME].length == waits &&
               order[BEHIND].length && are_places(&order[ITEM], groups, 1) &&
               are_places(&order[LANE], order[BEHIND].length, 0) &&
               are_places(&order[ITS_EPOCH], waits + 1, 0) &&
               are_places(&order[AFTER], groups, 1) &&
               are_places(&order[WAITS_FOR], groups, 1);
    for (size_t at = 0; fits && at < items; at++)
        fits = item[at] != NO_GROUP || epoch[at] < waits;
    return fits ? 1 : refused();
}

/* Take a tuple of columns. */
static int take_tuple(PyObject *tuple, const char *formats, Column *columns) {
    PyObject *given[STEPS + ORDER];
    Py_ssize_t count = (Py_ssize_t)strlen(formats);
    if (PyTuple_Size(tuple) != count) return PyErr_Occurred() ? 0 : refused();
    for (Py_ssize_t at = 0; at < count; at++) given[at] = PyTuple_GetItem(tuple, at);
    return take_columns(given, formats, columns);
}

static PyObject *worked(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[2], *result = NULL;
    double scale, *sums = NULL;
    Column columns[2];
    if (!PyArg_ParseTuple(args, "OOd", &given[0], &given[1], &scale) ||
        !take_rows(given, "gg", columns))
        return NULL;
    size_t count = columns->length;
    if ((sums = malloc((count + 1) * sizeof *sums))) {
        Watch watch = {PyEval_SaveThread(), 0, 0};
        sum_work(columns[0].values, columns[1].values, count, scale, sums, &watch);
        PyEval_RestoreThread(watch.released);
        if (!watch.stopped)
            result = made(sums, count + 1, "g");
        else
            free(sums);
    } else {
        PyErr_NoMemory();
    }
    drop_columns(columns, 2);
    return result;
}

static PyObject *played(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[2], *result = NULL;
    Column steps[STEPS] = {0}, order[ORDER] = {0};
    double scale;
    int rounds;
    unsigned int groups;
    if (!PyArg_ParseTuple(args, "OOIdi", &given[0], &given[1], &groups, &scale, &rounds))
        return NULL;
    if (take_tuple(given[0], STEP_FORMATS, steps) && steps_fit(steps, groups) &&
        take_tuple(given[1], ORDER_FORMATS, order) &&
        order_fits(order, groups, steps[WAIT_START].length)) {
        size_t count = (size_t)groups + 1, epochs = steps[WAIT_START].length + 1;
        /* A group that no work is in takes no time. */
        double *work = calloc(3 * count + order[BEHIND].length, sizeof *work);
        double *entered = calloc(count, sizeof *entered);
        double *host = calloc(epochs, sizeof *host), took;
        if (work && entered && host) {
            Round round = {work,    work + count,     work + 2 * count,
                           entered, work + 3 * count, host};
            Watch watch = {PyEval_SaveThread(), 0, 0};
            took = play_rounds(steps, order, scale, rounds, &round, &watch);
            PyEval_RestoreThread(watch.released);
            if (!watch.stopped) {
                PyObject *parts[] = {PyFloat_FromDouble(took), made(host, epochs, "g"),
                                     made(entered, groups, "g")};
                host = entered = NULL;
                result = all_of(parts, 3);
            }
        } else {
            PyErr_NoMemory();
        }
        free(work);
        free(entered);
        free(host);
    }
    drop_columns(steps, STEPS);
    drop_columns(order, ORDER);
    return result;
}

static PyObject *timeline(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[3], *result = NULL;
    Column steps[STEPS] = {0}, run[2] = {0};
    double scale;
    if (!PyArg_ParseTuple(args, "OOOd", &given[0], &given[1], &given[2], &scale))
        return NULL;
    if (take_tuple(given[0], STEP_FORMATS, steps) && take_columns(&given[1], "gg", run) &&
        steps_fit(steps, run[1].length) &&
        (run[0].length == steps[WAIT_START].length + 1 || refused())) {
        size_t count = steps[GROUP].length, size = (count + 1) * sizeof(double);
        Timeline line = {malloc(size), malloc(size), malloc(size),
                         calloc(count / 8 + 1, 1)};
        double *before = malloc(run[0].length * sizeof *before);
        if (line.host_ns && line.begin && line.done && line.by_launch && before) {
            Watch watch = {PyEval_SaveThread(), 0, 0};
            find_timeline(steps, run[0].values, run[1].values, scale, before, &line,
                          &watch);
            PyEval_RestoreThread(watch.released);
            if (!watch.stopped) {
                PyObject *parts[] = {
                    made(line.host_ns, count, "g"), made(line.begin, count, "g"),
                    made(line.done, count, "g"), made(line.by_launch, count, "b")};
                line = (Timeline){NULL, NULL, NULL, NULL};
                result = all_of(parts, 4);
            }
        } else {
            PyErr_NoMemory();
        }
        free(line.host_ns);
        free(line.begin);
        free(line.done);
        free(line.by_launch);
        free(before);
    }
    drop_columns(steps, STEPS);
    drop_columns(run, 2);
    return result;
}

/* Take the changes: a tuple of (start, end, share) each. */
static int take_removed(PyObject *changes, Removed *removed, Py_ssize_t count) {
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *given[2];
        if (!PyArg_ParseTuple(PyTuple_GetItem(changes, at), "OOd", &given[0], &given[1],
                              &removed[at].share) ||
            !take_rows(given, "ll", removed[at].spans))
            return 0;
    }
    return 1;
}

/* Return the most spans that a piece has, or -1 if pieces are not of the spans. */
static int64_t most_spans(const Column *waits, size_t things, size_t nodes) {
    const int64_t *first = waits[FIRST].values, *count = waits[COUNT].values;
    int64_t spans = (int64_t)waits[START].length, most = 0;
    int fits = 1;
    for (int at = START; at <= THING; at++) fits &= waits[at].length == waits->length;
    for (int at = FIRST; at <= SHARE; at++)
        fits &= waits[at].length == waits[FIRST].length;
    fits = fits && are_places(&waits[AT], nodes, 0) && are_places(&waits[THING], things, 0);
    for (size_t piece = 0; fits && piece < waits[FIRST].length; piece++) {
        fits = first[piece] >= 0 && count[piece] >= 0 && count[piece] <= spans &&
               first[piece] <= spans - count[piece];
        if (count[piece] > most) most = count[piece];
    }
    if (fits) return most;
    refused();
    return -1;
}

static PyObject *waits(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given, *changes, *result = NULL;
    Column columns[WAITS];
    unsigned int things, nodes;
    double shortest;
    if (!PyArg_ParseTuple(args, "OO!IId", &given, &PyTuple_Type, &changes, &things, &nodes,
                          &shortest))
        return NULL;
    Py_ssize_t count = PyTuple_Size(changes);
    Removed *removed = calloc((size_t)count + 1, sizeof *removed);
    if (!removed) return PyErr_NoMemory();
    if (take_removed(changes, removed, count) &&
        take_tuple(given, WAIT_FORMATS, columns)) {
        int64_t most = most_spans(columns, things, nodes);
        double *time = calloc((size_t)things + 1, sizeof *time);
        uint32_t *calls = calloc((size_t)things + 1, sizeof *calls);
        Seen seen = {malloc(((size_t)nodes + 1) * sizeof *seen.thing), NULL, 0, 0};
        double *lengths = malloc(((size_t)(most < 0 ? 0 : most) + 1) * sizeof *lengths);
        int summed = 0;
        if (most >= 0 && time && calls && seen.thing && lengths) {
            memset(seen.thing, 0xff, ((size_t)nodes + 1) * sizeof *seen.thing);
            Watch watch = {PyEval_SaveThread(), 0, 0};
            summed = sum_waits(columns, removed, (size_t)count, shortest, &seen, lengths,
                               time, calls, &watch);
            PyEval_RestoreThread(watch.released);
        }
        if (summed) {
            PyObject *parts[] = {made(time, things, "g"), made(calls, things, "I")};
            time = NULL;
            calls = NULL;
            result = all_of(parts, 2);
        } else if (most >= 0 && !PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        free(time);
        free(calls);
        free(seen.thing);
        free(seen.others);
        free(lengths);
        drop_columns(columns, WAITS);
    }
    for (Py_ssize_t at = 0; at < count; at++) drop_columns(removed[at].spans, 2);
    free(removed);
    return result;
}

PyMethodDef replay_methods[] = {
    {"worked", worked, METH_VARARGS, "How much the host has worked at each edge."},
    {"played", played, METH_VARARGS, "How the steps go."},
    {"timeline", timeline, METH_VARARGS, "When work begins and is done."},
    {"waits", waits, METH_VARARGS, "How long the GPU waits for what the host does."},
    {NULL, NULL, 0, NULL},
};

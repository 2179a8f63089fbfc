/* Loops over columns that a query of Polars cannot be: they carry a state along.
 *
 * sweep.py says what each is for, and calls it; who calls that has the same in Polars,
 * as the reference. Columns come and go by Arrow's C data interface, without a copy.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "../formats/_columns.h"

/* What sweep.py asks for: one more with each change between the two. */
#define INTERFACE 10

/* --------------------------------------------------------------- Arguments and results */

/* Take columns of these formats, or none of them; the first ``count`` have one length. */
static int take_rows(PyObject *const *given, const char *formats, size_t count,
                     Column *columns) {
    if (!take_columns(given, formats, columns)) return 0;
    for (size_t at = 1; at < count; at++) {
        if (columns[at].length == columns[0].length) continue;
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        drop_columns(columns, strlen(formats));
        return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------ Rows in pre-order */

typedef struct {
    const int64_t *start, *end;
    uint32_t *order, *other; /* rows as they are, and as they will be */
} Sorting;

static int comes_before(const Sorting *sorting, uint32_t one, uint32_t other) {
    if (sorting->start[one] != sorting->start[other])
        return sorting->start[one] < sorting->start[other];
    return sorting->end[one] > sorting->end[other];
}

/* Rows that are out of order by no more than this are put where they belong at once. */
#define NEAR 8

/* Cut rows into runs that are in order; return how many, and behind which row each is. */
static size_t find_runs(Sorting *sorting, size_t first, size_t last, uint32_t *runs) {
    uint32_t *order = sorting->order;
    size_t count = 0, begin = first;
    for (size_t next = first + 1; next < last; next++) {
        uint32_t row = order[next];
        size_t at = next, lowest = next - begin > NEAR ? next - NEAR : begin;
        if (!comes_before(sorting, row, order[at - 1])) continue;
        while (at > lowest && comes_before(sorting, row, order[at - 1])) at--;
        if (at == lowest && at > begin && comes_before(sorting, row, order[at - 1])) {
            runs[count++] = (uint32_t)(begin = next);
            continue;
        }
        memmove(order + at + 1, order + at, (next - at) * sizeof *order);
        order[at] = row;
    }
    runs[count++] = (uint32_t)last;
    return count;
}

/* Merge two neighbours; of rows that are equal the first one's come first. */
static void merge(const Sorting *sorting, size_t first, size_t middle, size_t last) {
    const uint32_t *order = sorting->order;
    size_t one = first, two = middle;
    for (size_t made = first; made < last; made++) {
        int second = one == middle ||
                     (two < last && comes_before(sorting, order[two], order[one]));
        sorting->other[made] = second ? order[two++] : order[one++];
    }
}

/* Sort rows by start, the longest first; most are in order, or are some runs that are. */
static int sort_rows(Sorting *sorting, size_t first, size_t last, uint32_t *runs,
                     Watch *watch) {
    size_t count = find_runs(sorting, first, last, runs);
    while (count > 1) {
        if (!may_go_on(watch, last - first)) return 0;
        size_t begin = first, merged = 0;
        for (size_t run = 0; run < count; run += 2) {
            size_t middle = runs[run], end = run + 1 < count ? runs[run + 1] : middle;
            merge(sorting, begin, middle, end);
            runs[merged++] = (uint32_t)(begin = end);
        }
        memcpy(sorting->order + first, sorting->other + first,
               (last - first) * sizeof *sorting->order);
        count = merged;
    }
    return may_go_on(watch, last - first);
}

/* Put rows in pre-order: by thread, then start, the longest first. ``after`` has room
 * for two more than there are threads. */
static int find_order(Sorting *sorting, const uint32_t *thread, size_t count,
                      size_t threads, uint32_t *after, uint32_t *runs, Watch *watch) {
    for (size_t row = 0; row < count; row++) after[thread[row] + 2]++;
    for (size_t at = 2; at < threads + 2; at++) after[at] += after[at - 1];
    for (size_t row = 0; row < count; row++)
        sorting->order[after[thread[row] + 1]++] = (uint32_t)row;
    for (size_t at = 0; at < threads; at++)
        if (after[at + 1] > after[at] &&
            !sort_rows(sorting, after[at], after[at + 1], runs, watch))
            return 0;
    return 1;
}

static PyObject *preorder(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[3];
    Column columns[3];
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2]) ||
        !take_rows(given, "Ill", 3, columns))
        return NULL;
    const uint32_t *thread = columns[0].values;
    size_t count = columns[0].length, threads = 0;
    for (size_t row = 0; row < count; row++)
        if (thread[row] >= threads) threads = (size_t)thread[row] + 1;
    PyObject *result = NULL;
    if (threads > 4 * count + 64) {
        /* Numbers are few, or they are no numbers of threads. */
        result = none();
    } else {
        Sorting sorting = {columns[1].values, columns[2].values, NULL, NULL};
        sorting.order = malloc((count + 1) * sizeof *sorting.order);
        sorting.other = malloc((count + 1) * sizeof *sorting.other);
        uint32_t *after = calloc(threads + 2, sizeof *after);
        uint32_t *runs = malloc((count + 1) * sizeof *runs);
        if (sorting.order && sorting.other && after && runs) {
            Watch watch = {PyEval_SaveThread(), 0, 0};
            int whole = find_order(&sorting, thread, count, threads, after, runs, &watch);
            PyEval_RestoreThread(watch.released);
            if (whole) {
                result = made(sorting.order, count, "I");
                sorting.order = NULL;
            }
        } else {
            PyErr_NoMemory();
        }
        free(sorting.order);
        free(sorting.other);
        free(after);
        free(runs);
    }
    drop_columns(columns, 3);
    return result;
}

/* ------------------------------------------------------------------- Who is around whom */

/* The nearest row before each, of its thread, that ends no earlier, or nowhere.
 * Whoever is passed over ends before the one that passes, which is nearer. */
static int find_parents(const uint32_t *thread, const int64_t *end, size_t count,
                        uint32_t nowhere, uint32_t *parent, uint32_t *open,
                        Watch *watch) {
    size_t depth = 0;
    for (size_t row = 0; row < count; row++) {
        if (!may_go_on(watch, 1)) return 0;
        if (row && thread[row] != thread[row - 1]) depth = 0;
        while (depth && end[open[depth - 1]] < end[row]) depth--;
        parent[row] = depth ? open[depth - 1] : nowhere;
        open[depth++] = (uint32_t)row;
    }
    return 1;
}

static PyObject *parents(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2];
    Column columns[2];
    unsigned int nowhere;
    if (!PyArg_ParseTuple(args, "IOO", &nowhere, &given[0], &given[1]) ||
        !take_rows(given, "Il", 2, columns))
        return NULL;
    size_t count = columns[0].length;
    uint32_t *parent = malloc((count + 1) * sizeof *parent);
    uint32_t *open = malloc((count + 1) * sizeof *open);
    PyObject *result = NULL;
    if (parent && open) {
        Watch watch = {PyEval_SaveThread(), 0, 0};
        int whole = find_parents(columns[0].values, columns[1].values, count, nowhere,
                                 parent, open, &watch);
        PyEval_RestoreThread(watch.released);
        if (whole) {
            result = made(parent, count, "I");
            parent = NULL;
        }
    } else {
        PyErr_NoMemory();
    }
    free(parent);
    free(open);
    drop_columns(columns, 2);
    return result;
}

/* ------------------------------------------------------------- Rows of several tables */

/* Of each row its thread, start, duration, id and a number; see sweep.tree. */
#define TABLE "IllII"
#define WIDTH 5
#define MOST_TABLES 8

typedef struct {
    const uint32_t *thread;
    const int64_t *start, *dur;
    const uint32_t *id, *number;
    size_t count;
} Table;

typedef struct {
    size_t count;
    int64_t *start, *end;
    uint32_t *thread, *row, *code, *parent;
    uint8_t *part;
} Tree;

static void free_tree(Tree *tree) {
    free(tree->start);
    free(tree->end);
    free(tree->thread);
    free(tree->row);
    free(tree->code);
    free(tree->parent);
    free(tree->part);
    memset(tree, 0, sizeof *tree);
}

/* What is large goes back to the system when it is freed (cli/malloc.py): make a
 * large block of what is not small. What of it is not used takes no memory. Each page
 * costs when it is first written to: of large ones there are few. */
#define SMALL (1 << 20)
#define LARGE ((16 << 20) + 1)
#define LARGE_PAGE (2 << 20)

static void *room(size_t count, size_t width) {
    size_t size = count * width;
    if (size <= SMALL) return malloc(size);
    if (size < LARGE) size = LARGE;
#ifdef MADV_HUGEPAGE
    void *found = NULL;
    if (posix_memalign(&found, LARGE_PAGE, size)) return NULL;
    madvise(found, size, MADV_HUGEPAGE);
    return found;
#else
    return malloc(size);
#endif
}

static int make_tree(Tree *tree, size_t size) {
    tree->start = room(size, sizeof *tree->start);
    tree->end = room(size, sizeof *tree->end);
    tree->thread = room(size, sizeof *tree->thread);
    tree->row = room(size, sizeof *tree->row);
    tree->code = room(size, sizeof *tree->code);
    tree->parent = room(size, sizeof *tree->parent);
    tree->part = room(size, sizeof *tree->part);
    return tree->start && tree->end && tree->thread && tree->row && tree->code &&
           tree->parent && tree->part;
}

/* Rows of each table by thread: those of a thread and a table are a list. */
typedef struct {
    const Table *tables;
    size_t parts, threads;
    uint32_t *rows;  /* all lists, one after the other, by thread, then table */
    uint32_t *after; /* where each list ends, and the next one begins */
} Lists;

/* Return the list of a row, or none, if it takes no time or its thread does not count. */
static size_t list_of(const Lists *lists, const uint32_t *ranks, size_t part, size_t row) {
    const Table *table = &lists->tables[part];
    uint32_t rank = ranks[table->thread[row]];
    if (rank == UINT32_MAX || table->dur[row] <= 0) return SIZE_MAX;
    return rank * lists->parts + part;
}

/* Put the rows in their lists. ``after`` has two more than there are lists, all 0. */
static void fill_lists(Lists *lists, const uint32_t *ranks) {
    size_t list, count = lists->parts * lists->threads;
    for (size_t part = 0; part < lists->parts; part++)
        for (size_t row = 0; row < lists->tables[part].count; row++)
            if ((list = list_of(lists, ranks, part, row)) != SIZE_MAX)
                lists->after[list + 2]++;
    for (size_t at = 2; at < count + 2; at++) lists->after[at] += lists->after[at - 1];
    for (size_t part = 0; part < lists->parts; part++)
        for (size_t row = 0; row < lists->tables[part].count; row++)
            if ((list = list_of(lists, ranks, part, row)) != SIZE_MAX)
                lists->rows[lists->after[list + 1]++] = (uint32_t)row;
}

/* Sort each list by start, the longest first: of two that begin together that is also
 * the one that ends later. ``other`` is touched only by what is far out of order. */
static int sort_lists(const Lists *lists, uint32_t *other, uint32_t *runs, Watch *watch) {
    for (size_t list = 0; list < lists->parts * lists->threads; list++) {
        const Table *table = &lists->tables[list % lists->parts];
        Sorting sorting = {table->start, table->dur, lists->rows, other};
        size_t first = lists->after[list], last = lists->after[list + 1];
        if (last > first && !sort_rows(&sorting, first, last, runs, watch)) return 0;
    }
    return 1;
}

/* Return which of a thread's lists has the next row; as many as there are if none. */
static size_t next_list(const Lists *lists, const uint32_t *at, const uint32_t *after) {
    size_t found = lists->parts;
    int64_t start = 0, dur = 0;
    for (size_t part = 0; part < lists->parts; part++) {
        if (at[part] == after[part]) continue;
        const Table *table = &lists->tables[part];
        uint32_t row = lists->rows[at[part]];
        if (found < lists->parts &&
            (table->start[row] > start ||
             (table->start[row] == start && table->dur[row] <= dur)))
            continue;
        found = part;
        start = table->start[row];
        dur = table->dur[row];
    }
    return found;
}

/* Merge the lists of each thread, and put nothing at the end. */
static void merge_lists(const Lists *lists, Tree *found) {
    size_t parts = lists->parts, made = 0, part;
    for (size_t thread = 0; thread < lists->threads; thread++) {
        const uint32_t *after = lists->after + thread * parts;
        uint32_t at[MOST_TABLES];
        memcpy(at, after, parts * sizeof *at);
        while ((part = next_list(lists, at, after + 1)) < parts) {
            const Table *table = &lists->tables[part];
            uint32_t row = lists->rows[at[part]++];
            found->start[made] = table->start[row];
            /* As Polars adds: what is beyond all numbers begins again. */
            found->end[made] =
                (int64_t)((uint64_t)table->start[row] + (uint64_t)table->dur[row]);
            found->thread[made] = (uint32_t)thread;
            found->part[made] = (uint8_t)part;
            found->row[made] = table->id[row];
            found->code[made++] =
                1 + table->number[row] * (uint32_t)parts + (uint32_t)part;
        }
    }
    found->start[made] = 0;
    found->end[made] = 1;
    found->thread[made] = (uint32_t)lists->threads;
    found->part[made] = (uint8_t)parts;
    found->row[made] = found->code[made] = 0;
    found->count = made + 1;
}

/* Make a tree of tables; false where memory ends. */
static int try_tree(const Table *tables, size_t parts, const uint32_t *ranks,
                    size_t threads, Tree *found, Watch *watch) {
    size_t size = 1;
    for (size_t part = 0; part < parts; part++) size += tables[part].count;
    Lists lists = {tables, parts, threads, room(size, sizeof *lists.rows),
                   calloc(parts * threads + 2, sizeof *lists.after)};
    uint32_t *other = malloc(size * sizeof *other), *runs = malloc(size * sizeof *runs);
    int whole = lists.rows && lists.after && other && runs;
    if (whole) {
        fill_lists(&lists, ranks);
        whole = sort_lists(&lists, other, runs, watch);
    }
    if (whole) {
        whole = make_tree(found, (size_t)lists.after[parts * threads] + 1);
    }
    if (whole) {
        merge_lists(&lists, found);
        whole = find_parents(found->thread, found->end, found->count,
                             (uint32_t)found->count - 1, found->parent, other, watch);
    }
    free(lists.rows);
    free(lists.after);
    free(other);
    free(runs);
    return whole;
}

/* Return whether all rows are of threads that have a rank, or none, among these. */
static int have_ranks(const Table *tables, size_t parts, const Column *ranks,
                      size_t threads) {
    const uint32_t *rank = ranks->values;
    for (size_t at = 0; at < ranks->length; at++)
        if (rank[at] != UINT32_MAX && rank[at] >= threads) return 0;
    for (size_t part = 0; part < parts; part++)
        for (size_t row = 0; row < tables[part].count; row++)
            if (tables[part].thread[row] >= ranks->length) return 0;
    return 1;
}

static PyObject *made_tree(Tree *tree) {
    size_t count = tree->count;
    PyObject *columns[] = {
        made(tree->start, count, "l"),  made(tree->end, count, "l"),
        made(tree->part, count, "C"),   made(tree->row, count, "I"),
        made(tree->thread, count, "I"), made(tree->code, count, "I"),
        made(tree->parent, count, "I"),
    };
    return all_of(columns, 7);
}

/* Take the columns of tables, or none of them. */
static int take_tables_of(PyObject *args, Py_ssize_t first, size_t parts, Column *columns,
                          Table *tables) {
    for (size_t part = 0; part < parts; part++) {
        PyObject *given[WIDTH];
        Column *mine = columns + WIDTH * part;
        for (Py_ssize_t at = 0; at < WIDTH; at++)
            given[at] = PyTuple_GetItem(args, first + WIDTH * (Py_ssize_t)part + at);
        if (!take_rows(given, TABLE, WIDTH, mine)) {
            drop_columns(columns, WIDTH * part);
            return 0;
        }
        tables[part] = (Table){mine[0].values, mine[1].values, mine[2].values,
                               mine[3].values, mine[4].values, mine[0].length};
    }
    return 1;
}

static PyObject *tree(PyObject *self, PyObject *args) {
    (void)self;
    Py_ssize_t given = PyTuple_Size(args);
    size_t parts = given < 2 ? 0 : (size_t)(given - 2) / WIDTH;
    if (given != 2 + WIDTH * (Py_ssize_t)parts || !parts || parts > MOST_TABLES) {
        PyErr_SetString(PyExc_TypeError, "threads, ranks and some tables");
        return NULL;
    }
    unsigned long threads = PyLong_AsUnsignedLong(PyTuple_GetItem(args, 0));
    if (PyErr_Occurred()) return NULL;
    Column ranks, columns[WIDTH * MOST_TABLES];
    Table tables[MOST_TABLES];
    PyObject *result = NULL;
    if (!take_column(PyTuple_GetItem(args, 1), "I", 4, &ranks)) return NULL;
    if (take_tables_of(args, 2, parts, columns, tables)) {
        Tree found = {0};
        int whole = 0;
        /* Each of the threads that are counted has a rank. */
        if (threads > ranks.length || !have_ranks(tables, parts, &ranks, threads)) {
            PyErr_SetString(PyExc_ValueError, "a thread without a rank");
        } else {
            Watch watch = {PyEval_SaveThread(), 0, 0};
            whole = try_tree(tables, parts, ranks.values, threads, &found, &watch);
            PyEval_RestoreThread(watch.released);
            if (whole) {
                result = made_tree(&found);
            } else {
                free_tree(&found);
                if (!watch.stopped) PyErr_NoMemory();
            }
        }
        drop_columns(columns, WIDTH * parts);
    }
    drop_column(&ranks);
    return result;
}

/* Where one arrives from each row; false if a row leads to one behind it, but the last. */
static int find_ends(const uint32_t *leads, size_t count, uint32_t *found) {
    for (size_t row = 0; row < count; row++) {
        uint32_t next = leads[row];
        if (next < row)
            found[row] = found[next];
        else if (next == row || (next == count - 1 && leads[next] == next))
            found[row] = next;
        else
            return 0;
    }
    return 1;
}

static PyObject *arrived(PyObject *self, PyObject *series) {
    (void)self;
    Column leads;
    if (!take_column(series, "I", 4, &leads)) return NULL;
    uint32_t *found = malloc((leads.length + 1) * sizeof *found);
    PyObject *result = NULL;
    if (!found) {
        PyErr_NoMemory();
    } else {
        int whole;
        Py_BEGIN_ALLOW_THREADS
        whole = find_ends(leads.values, leads.length, found);
        Py_END_ALLOW_THREADS
        if (whole) {
            result = made(found, leads.length, "I");
        } else {
            free(found);
            result = none();
        }
    }
    drop_column(&leads);
    return result;
}

/* ------------------------------------------------------------------ How deep rows are */

/* Write how many rows are around each; false if one is not behind those around it. */
static int find_depths(const uint32_t *up, size_t count, uint32_t *depth) {
    for (size_t row = 0; row < count; row++) {
        if (up[row] == count) {
            depth[row] = 0;
            continue;
        }
        if (up[row] >= row) return 0;
        depth[row] = depth[up[row]] + 1;
    }
    return 1;
}

static PyObject *depths(PyObject *self, PyObject *series) {
    (void)self;
    Column up;
    if (!take_column(series, "I", 4, &up)) return NULL;
    uint32_t *found = malloc((up.length + 1) * sizeof *found);
    PyObject *result = NULL;
    if (!found) {
        PyErr_NoMemory();
    } else {
        int whole;
        Py_BEGIN_ALLOW_THREADS
        whole = find_depths(up.values, up.length, found);
        Py_END_ALLOW_THREADS
        if (whole) {
            result = made(found, up.length, "I");
        } else {
            free(found);
            result = none();
        }
    }
    drop_column(&up);
    return result;
}

/* ------------------------------------------------------------ Rows that are the same */

#define UNUSED UINT32_MAX

/* Keys by their numbers, which count them. A slot is used if it has a number. */
typedef struct {
    uint64_t *keys;
    uint32_t *numbers;
    size_t size, used; /* the size is a power of two */
    size_t patience;   /* how many slots may be passed until it is given up */
} Numbers;

static int make_slots(Numbers *numbers, size_t size) {
    numbers->size = size;
    numbers->keys = malloc(size * sizeof *numbers->keys);
    numbers->numbers = malloc(size * sizeof *numbers->numbers);
    if (!numbers->keys || !numbers->numbers) return 0;
    memset(numbers->numbers, 0xFF, size * sizeof *numbers->numbers);
    return 1;
}

static void free_slots(Numbers *numbers) {
    free(numbers->keys);
    free(numbers->numbers);
}

/* The slot of a key, or the one that is free for it; the size if it was given up. */
static size_t find_slot(Numbers *numbers, uint64_t key) {
    uint64_t mixed = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(mixed ^ (mixed >> 32)) & (numbers->size - 1);
    while (numbers->numbers[at] != UNUSED && numbers->keys[at] != key) {
        if (!numbers->patience) return numbers->size;
        numbers->patience--;
        at = (at + 1) & (numbers->size - 1);
    }
    return at;
}

/* Twice as many slots; false without memory, or if it was given up. */
static int grow(Numbers *numbers) {
    Numbers more = *numbers;
    int found = make_slots(&more, 2 * numbers->size);
    for (size_t at = 0; found && at < numbers->size; at++) {
        if (numbers->numbers[at] == UNUSED) continue;
        size_t slot = find_slot(&more, numbers->keys[at]);
        found = slot < more.size;
        if (!found) break;
        more.keys[slot] = numbers->keys[at];
        more.numbers[slot] = numbers->numbers[at];
    }
    free_slots(found ? numbers : &more);
    if (found) *numbers = more;
    return found;
}

/* The number of a row's key, of which it may be the first; UNUSED if it was given up. */
static uint32_t number_of(Numbers *numbers, uint64_t key, size_t row, uint32_t *first) {
    if (2 * numbers->used >= numbers->size && !grow(numbers)) return UNUSED;
    size_t slot = find_slot(numbers, key);
    if (slot == numbers->size) return UNUSED;
    if (numbers->numbers[slot] == UNUSED) {
        first[numbers->used] = (uint32_t)row;
        numbers->keys[slot] = key;
        numbers->numbers[slot] = (uint32_t)numbers->used++;
    }
    return numbers->numbers[slot];
}

/* Number rows by their keys, in the order in which these come first, and say which row
 * is the first of each; return how many numbers there are, 0 if it was given up. */
static size_t number_keys(const uint64_t *key, size_t count, uint32_t *number,
                          uint32_t *first) {
    Numbers numbers = {NULL, NULL, 0, 0, 32 * count + 64};
    int found = make_slots(&numbers, 1024);
    for (size_t row = 0; found && row < count; row++) {
        number[row] = number_of(&numbers, key[row], row, first);
        found = number[row] != UNUSED;
    }
    free_slots(&numbers);
    return found ? numbers.used : 0;
}

/* The same by a row's code and those of all around it, of a tree in pre-order. The last
 * row is nothing. */
static size_t number_paths(const uint32_t *code, const uint32_t *parent, size_t count,
                           uint32_t *number, uint32_t *first) {
    Numbers numbers = {NULL, NULL, 0, 0, 32 * count + 64};
    int found = make_slots(&numbers, 1024);
    for (size_t row = 0; found && row + 1 < count; row++) {
        int outermost = parent[row] == count - 1;
        found = outermost || parent[row] < row;
        if (!found) break;
        uint64_t around = outermost ? UNUSED : number[parent[row]];
        number[row] = number_of(&numbers, around << 32 | code[row], row, first);
        found = number[row] != UNUSED;
    }
    free_slots(&numbers);
    if (!found || !count) return 0;
    number[count - 1] = (uint32_t)numbers.used;
    first[numbers.used] = (uint32_t)(count - 1);
    return numbers.used + 1;
}

/* Return the numbers of rows by keys, or by codes and parents; None if it was given up. */
static PyObject *made_numbers(const Column *keys, const Column *parents) {
    size_t count = keys->length, found;
    uint32_t *number = malloc((count + 1) * sizeof *number);
    uint32_t *first = malloc((count + 1) * sizeof *first);
    if (!number || !first) {
        free(number);
        free(first);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    if (parents)
        found = number_paths(keys->values, parents->values, count, number, first);
    else
        found = number_keys(keys->values, count, number, first);
    Py_END_ALLOW_THREADS
    if (!found) {
        free(number);
        free(first);
        return none();
    }
    uint32_t *less = realloc(first, found * sizeof *first);
    PyObject *parts[] = {made(number, count, "I"), made(less ? less : first, found, "I")};
    return all_of(parts, 2);
}

static PyObject *numbered(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2];
    Column columns[2];
    if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1]) ||
        !take_rows(given, "II", 2, columns))
        return NULL;
    PyObject *result = made_numbers(&columns[0], &columns[1]);
    drop_columns(columns, 2);
    return result;
}

static PyObject *counted(PyObject *self, PyObject *series) {
    (void)self;
    Column keys;
    if (!take_column(series, "L", 8, &keys)) return NULL;
    PyObject *result = made_numbers(&keys, NULL);
    drop_column(&keys);
    return result;
}

/* ---------------------------------------------------------- What is open at each moment */

/* A thread on its way through its rows: the next moment, and what is open. */
typedef struct {
    size_t row, last; /* the next row that begins, and behind the last */
    uint32_t *open;   /* rows that are open, the one that ends first on top */
    size_t depth;
    int64_t time; /* of its next moment, ... */
    int ends;     /* ... and whether a row ends then; otherwise one begins */
} Thread;

typedef struct {
    const int64_t *start, *end;
    const uint32_t *parent, *thread;
    size_t count;
    size_t patience; /* how many rows may be passed until it is given up */
} Rows;

/* Find the next moment of a thread; false if there is none. At one moment ends come
 * first, the last row's first. */
static int next_moment(const Rows *rows, Thread *thread) {
    uint32_t top = thread->depth ? thread->open[thread->depth - 1] : 0;
    int begins = thread->row < thread->last;
    thread->ends =
        thread->depth && (!begins || rows->end[top] <= rows->start[thread->row]);
    if (!thread->ends && !begins) return 0;
    thread->time = thread->ends ? rows->end[top] : rows->start[thread->row];
    return 1;
}

/* Let the next moment pass, and say what is open then; false if too many rows overlap
 * and are not inside another. */
static int pass_moment(Rows *rows, Thread *thread, uint32_t *now_open) {
    if (thread->ends) {
        *now_open = rows->parent[thread->open[--thread->depth]];
        return 1;
    }
    uint32_t row = (uint32_t)thread->row++;
    size_t at = thread->depth++;
    for (; at && rows->end[thread->open[at - 1]] < rows->end[row]; at--) {
        thread->open[at] = thread->open[at - 1];
        if (!rows->patience--) return 0;
    }
    thread->open[at] = row;
    *now_open = row;
    return 1;
}

/* Move a thread down the heap, as far as others come before it. */
static void sink(Thread *heap, size_t count, size_t at) {
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) return;
        if (child + 1 < count && heap[child + 1].time < heap[child].time) child++;
        if (heap[child].time >= heap[at].time) return;
        Thread mine = heap[at];
        heap[at] = heap[child];
        heap[child] = mine;
        at = child;
    }
}

/* Make a heap of the threads, by their first moments; return how many there are. */
static size_t make_heap(const Rows *rows, uint32_t *open, Thread *heap) {
    size_t count = 0;
    for (size_t row = 0, first = 0; row < rows->count; row++) {
        if (row + 1 < rows->count && rows->thread[row + 1] == rows->thread[row]) continue;
        heap[count] = (Thread){first, row + 1, open + first, 0, 0, 0};
        next_moment(rows, &heap[count++]);
        first = row + 1;
    }
    for (size_t at = count / 2; at-- > 0;) sink(heap, count, at);
    return count;
}

static size_t count_threads(const uint32_t *thread, size_t rows) {
    size_t count = 0;
    for (size_t row = 0; row < rows; row++) count += !row || thread[row] != thread[row - 1];
    return count;
}

/* Which of the threads do something, and the first of these. */
typedef struct {
    uint32_t *at;   /* what is open in each, or nothing */
    uint8_t *busy;  /* behind the leaves of a tree: whether any below does something */
    size_t leaves;  /* a power of two */
    uint32_t nothing, first;
} Threads;

static void find_first_busy(Threads *threads) {
    size_t node = 1;
    if (!threads->busy[node]) {
        threads->first = (uint32_t)threads->leaves;
        return;
    }
    while (node < threads->leaves) node = 2 * node + !threads->busy[2 * node];
    threads->first = (uint32_t)(node - threads->leaves);
}

/* Note what is open in a thread from now on. */
static void note_open(Threads *threads, uint32_t thread, uint32_t at) {
    int was = threads->at[thread] != threads->nothing, is = at != threads->nothing;
    threads->at[thread] = at;
    if (was == is) return;
    size_t node = threads->leaves + thread;
    threads->busy[node] = (uint8_t)is;
    for (node /= 2; node; node /= 2)
        threads->busy[node] = threads->busy[2 * node] | threads->busy[2 * node + 1];
    find_first_busy(threads);
}

static uint32_t open_in_first(const Threads *threads) {
    return threads->first < threads->leaves ? threads->at[threads->first]
                                            : threads->nothing;
}

static int make_threads(Threads *threads, size_t count, uint32_t nothing) {
    size_t leaves = 1;
    while (leaves < count) leaves *= 2;
    threads->leaves = leaves;
    threads->nothing = nothing;
    threads->first = (uint32_t)leaves;
    threads->at = malloc(leaves * sizeof *threads->at);
    threads->busy = calloc(2 * leaves, sizeof *threads->busy);
    if (!threads->at || !threads->busy) return 0;
    for (size_t thread = 0; thread < leaves; thread++) threads->at[thread] = nothing;
    return 1;
}

/* Segments as they are found: the last one grows until something else is open. */
typedef struct {
    int64_t *start, *end;
    uint32_t *at;
    size_t made;
    int64_t now, since; /* the last moment, and when the growing one began */
    uint32_t growing;   /* what is open in it */
    int inside, is_inside; /* of a step: from now on, and that */
    int cut;               /* whether it ends now, whatever is open */
} Segments;

static void end_growing(Segments *segments) {
    if (segments->is_inside && segments->now > segments->since) {
        segments->start[segments->made] = segments->since;
        segments->end[segments->made] = segments->now;
        segments->at[segments->made++] = segments->growing;
    }
    segments->since = segments->now;
}

/* Go on to the next moment, with what was open since the last one. */
static void go_on(Segments *segments, int64_t time, uint32_t open) {
    if (time == segments->now) return;
    if (open != segments->growing || segments->cut) {
        end_growing(segments);
        segments->growing = open;
        segments->is_inside = segments->inside;
        segments->cut = 0;
    }
    segments->now = time;
}

typedef struct {
    const int64_t *times;
    const uint32_t *inside; /* whether it is inside a step from there on */
    size_t next, count;
} Edges;

/* When another thread than the first of the heap has its next moment, or an edge is. */
static int64_t next_of_others(const Thread *heap, size_t count, const Edges *edges) {
    int64_t next = INT64_MAX;
    if (edges->next < edges->count) next = edges->times[edges->next];
    for (size_t child = 1; child < 3 && child < count; child++)
        if (heap[child].time < next) next = heap[child].time;
    return next;
}

/* Find what is open, one segment after the other; false if it was given up. What comes
 * first of several things at one moment does not matter: only the last of them lasts. */
static int find_segments(Rows *rows, Thread *heap, size_t count, Threads *threads,
                         Edges *edges, Segments *segments) {
    segments->now = count ? heap->time : 0;
    if (edges->count && (!count || *edges->times < segments->now))
        segments->now = *edges->times;
    segments->since = segments->now;
    segments->growing = threads->nothing;
    while (count || edges->next < edges->count) {
        int64_t others = next_of_others(heap, count, edges);
        if (!count ||
            (edges->next < edges->count && edges->times[edges->next] < heap->time)) {
            go_on(segments, edges->times[edges->next], open_in_first(threads));
            segments->inside = edges->inside[edges->next++] != 0;
            segments->cut = 1;
            continue;
        }
        uint32_t rank = rows->thread[heap->last - 1], open;
        int more;
        do {
            go_on(segments, heap->time, open_in_first(threads));
            if (!pass_moment(rows, heap, &open)) return 0;
            note_open(threads, rank, open);
            more = next_moment(rows, heap);
        } while (more && heap->time <= others);
        if (!more) *heap = heap[--count];
        sink(heap, count, 0);
    }
    end_growing(segments);
    return 1;
}

/* Return columns of segments, which are given away, cut to as many as there are. */
static PyObject *made_segments(Segments *segments) {
    size_t count = segments->made, room = count ? count : 1;
    /* They have room for one at every moment; where that is not cut it stays. */
    int64_t *start = realloc(segments->start, room * sizeof *start);
    int64_t *end = realloc(segments->end, room * sizeof *end);
    uint32_t *at = realloc(segments->at, room * sizeof *at);
    PyObject *parts[] = {made(start ? start : segments->start, count, "l"),
                         made(end ? end : segments->end, count, "l"),
                         made(at ? at : segments->at, count, "I")};
    return all_of(parts, 3);
}

static int are_below(const uint32_t *values, size_t count, size_t limit) {
    for (size_t at = 0; at < count; at++)
        if (values[at] >= limit) return 0;
    return 1;
}

/* As find_segments(), with all that it needs; 0 if it was given up, -1 without memory. */
static int try_segments(const Column *columns, uint32_t nothing, size_t ranks,
                        Segments *segments) {
    size_t count = columns[0].length;
    Rows rows = {columns[0].values, columns[1].values, columns[2].values,
                 columns[3].values, count, 8 * count};
    Edges edges = {columns[4].values, columns[5].values, 0, columns[4].length};
    size_t most = 2 * count + edges.count + 1;
    Threads threads = {0};
    uint32_t *open = malloc((count + 1) * sizeof *open);
    Thread *heap = malloc((count_threads(rows.thread, count) + 1) * sizeof *heap);
    segments->start = room(most, sizeof *segments->start);
    segments->end = room(most, sizeof *segments->end);
    segments->at = room(most, sizeof *segments->at);
    int found = -1;
    if (make_threads(&threads, ranks, nothing) && open && heap && segments->start &&
        segments->end && segments->at)
        found = find_segments(&rows, heap, make_heap(&rows, open, heap), &threads, &edges,
                              segments);
    free(open);
    free(heap);
    free(threads.at);
    free(threads.busy);
    return found;
}

static PyObject *segments(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[6], *result = NULL;
    Column columns[6];
    unsigned int nothing, ranks;
    if (!PyArg_ParseTuple(args, "IIOOOOOO", &nothing, &ranks, &given[0], &given[1],
                          &given[2], &given[3], &given[4], &given[5]) ||
        !take_rows(given, "llIIlI", 4, columns))
        return NULL;
    if (columns[4].length != columns[5].length || ranks > INT32_MAX ||
        !are_below(columns[3].values, columns[3].length, ranks)) {
        PyErr_SetString(PyExc_ValueError, "columns that do not fit together");
    } else {
        Segments found = {0};
        int whole;
        Py_BEGIN_ALLOW_THREADS
        whole = try_segments(columns, nothing, ranks, &found);
        Py_END_ALLOW_THREADS
        if (whole > 0) {
            result = made_segments(&found);
        } else {
            free(found.start);
            free(found.end);
            free(found.at);
            result = whole ? PyErr_NoMemory() : none();
        }
    }
    drop_columns(columns, 6);
    return result;
}

/* ------------------------------------------------------------------ Sums and counts */

/* Add each value to the sum of its row; false if there is no such row. */
static int add_up(const uint32_t *row, const int64_t *value, size_t count, int64_t *sums,
                  size_t rows) {
    for (size_t at = 0; at < count; at++) {
        if (row[at] >= rows) return 0;
        /* As Polars adds: what is too large for it begins again from below. */
        sums[row[at]] = (int64_t)((uint64_t)sums[row[at]] + (uint64_t)value[at]);
    }
    return 1;
}

static PyObject *sums(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2], *result = NULL;
    Column columns[2];
    unsigned int rows;
    if (!PyArg_ParseTuple(args, "IOO", &rows, &given[0], &given[1]) ||
        !take_rows(given, "Il", 2, columns))
        return NULL;
    int64_t *found = calloc((size_t)rows + 1, sizeof *found);
    if (!found) {
        PyErr_NoMemory();
    } else {
        int whole;
        Py_BEGIN_ALLOW_THREADS
        whole = add_up(columns[0].values, columns[1].values, columns[0].length, found,
                       rows);
        Py_END_ALLOW_THREADS
        if (whole) {
            result = made(found, rows, "l");
        } else {
            free(found);
            PyErr_SetString(PyExc_ValueError, "a value of a row that is not there");
        }
    }
    drop_columns(columns, 2);
    return result;
}

/* Count how many moments, in any order, are in each part between edges. Most are where
 * the one before was, or next to it: others are searched. */
static void count_between(const int64_t *edges, size_t parts, const int64_t *moments,
                          size_t count, int64_t *found) {
    size_t part = 0;
    for (size_t at = 0; at < count; at++) {
        int64_t moment = moments[at];
        if (moment < edges[0] || moment >= edges[parts]) continue;
        if (moment >= edges[part + 1] && moment < edges[part + 2 < parts ? part + 2 : parts])
            part++;
        if (moment < edges[part] || moment >= edges[part + 1]) {
            size_t low = 0, high = parts;
            while (high - low > 1) {
                size_t middle = low + (high - low) / 2;
                if (edges[middle] <= moment)
                    low = middle;
                else
                    high = middle;
            }
            part = low;
        }
        found[part]++;
    }
}

static PyObject *counts(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2], *result = NULL;
    Column columns[2];
    if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1]) ||
        !take_columns(given, "ll", columns))
        return NULL;
    size_t parts = columns[0].length ? columns[0].length - 1 : 0;
    int64_t *found = calloc(parts + 1, sizeof *found);
    if (!found) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        if (parts)
            count_between(columns[0].values, parts, columns[1].values, columns[1].length,
                          found);
        Py_END_ALLOW_THREADS
        result = made(found, parts, "l");
    }
    drop_columns(columns, 2);
    return result;
}

static PyMethodDef methods[] = {
    {"preorder", preorder, METH_VARARGS, "The rows in pre-order."},
    {"parents", parents, METH_VARARGS, "The row around each, in pre-order."},
    {"tree", tree, METH_VARARGS, "Rows of several tables, in pre-order."},
    {"depths", depths, METH_O, "How many rows are around each."},
    {"arrived", arrived, METH_O, "Where one arrives from each row."},
    {"numbered", numbered, METH_VARARGS, "Rows by their codes and those around them."},
    {"counted", counted, METH_O, "Rows by their keys."},
    {"segments", segments, METH_VARARGS, "What is open, one segment after the other."},
    {"sums", sums, METH_VARARGS, "The sum of the values of each row."},
    {"counts", counts, METH_VARARGS, "How many moments are between edges."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sweep", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sweep(void) {
    PyObject *found = PyModule_Create(&module);
    if (found && PyModule_AddIntConstant(found, "INTERFACE", INTERFACE)) Py_CLEAR(found);
    return found;
}

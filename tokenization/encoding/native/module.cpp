// kvatlas.tokenization.encoding._native: Python bindings of cutter and encoder. _native.pyi has the interface.

#include <stdexcept>
#include <string>

#include "cutter.h"
#include "encoder.h"
#include "json_cost.h"
#include "json_numbers.h"
#include "python.h"
#include "varints.h"
#include "vocabulary.h"

namespace {

using namespace kvatlas;
using namespace kvatlas::python;
using namespace kvatlas::tokenization;

// From this size on, it is worth releasing the GIL.
constexpr size_t kLongText = 4096;

uint32_t number_of(PyObject* object, const char* what) {
    const size_t value = as_count(object, 0, what);
    if (value > ~uint32_t{0}) raise(PyExc_ValueError, "number does not fit in 32 bits");
    return static_cast<uint32_t>(value);
}

std::string_view text_of(PyObject* object) {
    Py_ssize_t n = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &n);
    if (text == nullptr) throw Raised();
    return {text, static_cast<size_t>(n)};
}

template <class Visit>
void for_each_range(PyObject* ranges, Visit visit) {
    const Buffer bounds(ranges, 4, "IL", "ranges");
    if (bounds.n_bytes() % 8 != 0) raise(PyExc_ValueError, "ranges must be pairs of numbers");
    const auto* bound = static_cast<const uint32_t*>(bounds.data());
    for (size_t at = 0; at < bounds.n_bytes() / 4; at += 2) visit(CharacterTable::Range{bound[at], bound[at + 1]});
}

CharacterTable characters_of(PyObject* known, PyObject* inert, PyObject* classes) {
    CharacterTable characters;
    uint32_t bit = 0;
    for_each(classes, [&](PyObject* ranges) {
        if (bit == kMaxClasses) raise(PyExc_ValueError, "at most 30 classes are supported");
        for_each_range(ranges, [&](CharacterTable::Range range) { characters.add(range, Classes{1} << bit); });
        ++bit;
    });
    for_each_range(known, [&](CharacterTable::Range range) { characters.add(range, kKnown); });
    for_each_range(inert, [&](CharacterTable::Range range) { characters.add(range, kInert); });
    characters.forget_unknown();
    return characters;
}

Classes class_of(PyObject* number) {
    const uint32_t bit = number_of(number, "class");
    if (bit >= kMaxClasses) raise(PyExc_ValueError, "a class must be 0 .. 29");
    return Classes{1} << bit;
}

// Reads (kind, class, lowest, highest, is_possessive), or for a choice (kind, choices, lowest).
Element element_of(PyObject* tuple) {
    const auto part = [&](Py_ssize_t at) {
        PyObject* found = PyTuple_GetItem(tuple, at);
        if (found == nullptr) throw Raised();
        return found;
    };
    const uint32_t kind = number_of(part(0), "kind");
    Element element{.kind = static_cast<Element::Kind>(kind), .choices = {}};
    element.lowest = number_of(part(2), "lowest");
    if (element.kind == Element::Kind::one_of) {
        for_each(part(1), [&](PyObject* choice) {
            auto& classes = element.choices.emplace_back();
            for_each(choice, [&](PyObject* number) { classes.push_back(class_of(number)); });
        });
        return element;
    }
    if (kind > static_cast<uint32_t>(Element::Kind::one_of)) raise(PyExc_ValueError, "unknown kind of element");
    element.classes = class_of(part(1));
    element.highest = number_of(part(3), "highest");
    element.is_possessive = number_of(part(4), "possessive") != 0;
    return element;
}

// Returns the classes with which a match of the elements can begin.
Classes first_of(const std::vector<Element>& elements) {
    Classes first = 0;
    for (const Element& element : elements) {
        if (element.kind == Element::Kind::set) first |= element.classes;
        for (const auto& choice : element.choices) first |= choice.empty() ? 0 : choice.front();
        if (element.kind != Element::Kind::not_ahead && element.lowest > 0) break;
    }
    return first;
}

std::vector<Stage> stages_of(PyObject* list) {
    std::vector<Stage> stages;
    for_each(list, [&](PyObject* pair) {
        PyObject *drops_gaps = nullptr, *alternatives = nullptr;
        if (PyArg_ParseTuple(pair, "OO", &drops_gaps, &alternatives) == 0) throw Raised();
        Stage& stage = stages.emplace_back();
        stage.drops_gaps = number_of(drops_gaps, "drops_gaps") != 0;
        for_each(alternatives, [&](PyObject* elements) {
            Alternative& alternative = stage.alternatives.emplace_back();
            for_each(elements, [&](PyObject* element) { alternative.elements.push_back(element_of(element)); });
            alternative.first = first_of(alternative.elements);
        });
    });
    return stages;
}

std::vector<std::pair<std::string_view, uint32_t>> tokens_of(PyObject* dict) {
    std::vector<std::pair<std::string_view, uint32_t>> tokens;
    PyObject *content = nullptr, *id = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &content, &id) != 0;) tokens.emplace_back(text_of(content), number_of(id, "token"));
    return tokens;
}

std::vector<std::pair<std::string_view, std::string_view>> pairs_of(PyObject* list) {
    std::vector<std::pair<std::string_view, std::string_view>> pairs;
    for_each(list, [&](PyObject* pair) {
        PyObject *left = nullptr, *right = nullptr;
        if (PyArg_ParseTuple(pair, "UU", &left, &right) == 0) throw Raised();
        pairs.emplace_back(text_of(left), text_of(right));
    });
    return pairs;
}

AddedTokens added_of(PyObject* pairs) {
    AddedTokens added;
    for_each(pairs, [&](PyObject* pair) {
        PyObject *content = nullptr, *id = nullptr;
        if (PyArg_ParseTuple(pair, "UO", &content, &id) == 0) throw Raised();
        added.add(text_of(content), number_of(id, "token"));
    });
    return added;
}

// Builds the merge table without holding the GIL.
BytePairs byte_pairs_of(PyObject* vocabulary, PyObject* merges, bool whole_words) {
    auto tokens = tokens_of(vocabulary);
    const auto pairs = pairs_of(merges);
    try {
        const WithoutGil others_run;
        const Vocabulary known(std::move(tokens));
        return BytePairs(known.bytes(), known.merges(pairs), whole_words ? known.words() : std::unordered_map<std::string, uint32_t>());
    } catch (const std::invalid_argument& error) {
        raise(PyExc_ValueError, error.what());
    }
}

PyObject* new_encoder(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        static const char* const names[] = {"known",      "inert",   "classes",    "stages", "vocabulary",
                                            "merges",     "whole_words", "literal", "normalized", nullptr};
        PyObject *known = nullptr, *inert = nullptr, *classes = nullptr, *stages = nullptr, *vocabulary = nullptr, *merges = nullptr;
        PyObject *literal = nullptr, *normalized = nullptr;
        int whole_words = 0;
        if (PyArg_ParseTupleAndKeywords(args, named, "OOOOO!OpOO", const_cast<char**>(names), &known, &inert, &classes, &stages,
                                        &PyDict_Type, &vocabulary, &merges, &whole_words, &literal, &normalized) == 0) {
            throw Raised();
        }
        return wrap(type, new Encoder(characters_of(known, inert, classes), Splitter(stages_of(stages)),
                                      byte_pairs_of(vocabulary, merges, whole_words != 0), added_of(literal), added_of(normalized)));
    }, nullptr);
}

PyObject* encode(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"texts", "normalized"});
        const int is_normalized = PyObject_IsTrue(args[1]);
        if (is_normalized < 0) throw Raised();
        const Reference held(PySequence_Tuple(args[0]));  // keeps the texts alive while the GIL is released
        const auto n = static_cast<size_t>(PyTuple_Size(held.get()));
        std::vector<std::optional<std::string_view>> contents(n);
        size_t n_bytes = 0;
        for (size_t i = 0; i < n; ++i) {
            try {
                contents[i] = text_of(PyTuple_GetItem(held.get(), static_cast<Py_ssize_t>(i)));
                n_bytes += contents[i]->size();
            } catch (const Raised&) {
                if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw;
                PyErr_Clear();  // a lone surrogate cannot be encoded in UTF-8
            }
        }
        std::optional<WithoutGil> others_run;
        if (n_bytes >= kLongText) others_run.emplace();
        const auto encoded = value_of<Encoder>(self).encode(contents, is_normalized != 0);
        others_run.reset();
        Reference list(PyList_New(static_cast<Py_ssize_t>(n)));
        for (size_t i = 0; i < n; ++i) {
            PyObject* ids = encoded[i] ? bytes_of(*encoded[i]) : Py_NewRef(Py_None);
            PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), Reference(ids).release());
        }
        return list.release();
    }, nullptr);
}

PyObject* new_cutter(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        static const char* const names[] = {"tokens", "letters", "followers", nullptr};
        PyObject *tokens = nullptr, *ranges = nullptr;
        const char* followers = nullptr;
        if (PyArg_ParseTupleAndKeywords(args, named, "OOs", const_cast<char**>(names), &tokens, &ranges, &followers) == 0) throw Raised();
        AddedTokens added;
        for_each(tokens, [&](PyObject* token) { added.add(text_of(token), 0); });
        CharacterTable letters;
        for_each_range(ranges, [&](CharacterTable::Range range) { letters.add(range, 1); });
        return wrap(type, new Cutter(std::move(added), std::move(letters), followers));
    }, nullptr);
}

// From this length on, other threads may run between two parts of the work, which takes up to 10 ns per byte.
constexpr size_t kPause = size_t{1} << 18;

// Returns a text in UTF-8. For mostly ASCII texts, encoding in parts takes a third of the time, since Python stores each ASCII
// part with one byte per character.
std::string utf8_of(PyObject* text) {
    constexpr Py_ssize_t kPart = 4096;
    const Py_ssize_t n = PyUnicode_GetLength(text);
    if (n < 0) throw Raised();
    std::string utf8;
    utf8.reserve(static_cast<size_t>(n + n / 16));
    size_t pause = kPause;
    for (Py_ssize_t at = 0; at < n; at += kPart) {
        utf8 += text_of(Reference(PyUnicode_Substring(text, at, at + kPart)).get());
        if (utf8.size() < pause) continue;
        pause = utf8.size() + kPause;
        const WithoutGil others_run;
    }
    return utf8;
}

PyObject* segments(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"text", "size"});
        const std::string text = utf8_of(args[0]);
        const bool is_ascii = PyUnicode_GetLength(args[0]) == static_cast<Py_ssize_t>(text.size());
        const size_t size = as_count(args[1], 1, "size");
        std::vector<std::string_view> parts;
        std::optional<WithoutGil> others_run;
        if (text.size() >= kPause) others_run.emplace();
        value_of<Cutter>(self).cut(text, is_ascii, size, [&](std::string_view part) { parts.push_back(part); });
        others_run.reset();
        Reference list(PyList_New(static_cast<Py_ssize_t>(parts.size())));
        for (size_t i = 0; i < parts.size(); ++i) {
            // A text that cannot be cut is not copied.
            PyObject* part = parts.size() == 1 ? Py_NewRef(args[0])
                                               : PyUnicode_FromStringAndSize(parts[i].data(), static_cast<Py_ssize_t>(parts[i].size()));
            PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), Reference(part).release());
        }
        return list.release();
    }, nullptr);
}

PyObject* cost_of_json(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"json", "container"});
        const Buffer json(args[0], 1, "B", "json");
        const uint64_t container = number_of(args[1], "container");
        uint64_t cost = 0;
        {
            const WithoutGil others_run;
            cost = json_cost({static_cast<const char*>(json.data()), json.n_bytes()}, container);
        }
        return PyLong_FromUnsignedLongLong(cost);
    }, nullptr);
}

PyObject* numbers_of_json(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"json", "narrow", "wide"});
        const Buffer json(args[0], 1, "B", "json");
        std::vector<NumberField> fields;
        for_each(args[1], [&](PyObject* name) { fields.push_back({text_of(name), false}); });
        for_each(args[2], [&](PyObject* name) { fields.push_back({text_of(name), true}); });
        NumberCutter cutter({static_cast<const char*>(json.data()), json.n_bytes()}, fields);
        bool is_cut = false;
        {
            std::optional<WithoutGil> others_run;
            if (json.n_bytes() >= kLongText) others_run.emplace();
            is_cut = cutter.run();
        }
        if (!is_cut) Py_RETURN_NONE;
        const auto bytes = [](const std::string& text) { return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())); };
        Reference lists(PyList_New(0));
        for (size_t field = 0; field < fields.size(); ++field) {
            const Reference numbers(cutter.is_cut[field] ? bytes(cutter.numbers[field]) : Py_NewRef(Py_None));
            if (PyList_Append(lists.get(), numbers.get()) < 0) throw Raised();
        }
        const Reference rest(bytes(cutter.rest));
        return PyTuple_Pack(2, rest.get(), lists.get());
    }, nullptr);
}

PyObject* packed_numbers(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"packed", "item_size"});
        const Buffer packed(args[0], 1, "B", "packed");
        const bool is_wide = as_count(args[1], 4, "item_size") == 8;
        const std::string_view text(static_cast<const char*>(packed.data()), packed.n_bytes());
        std::string numbers;
        bool is_read = false;
        {
            std::optional<WithoutGil> others_run;
            if (text.size() >= kLongText) others_run.emplace();
            numbers.reserve(text.size() * 2);
            is_read = is_wide ? read_varints<uint64_t>(text, numbers) : read_varints<uint32_t>(text, numbers);
        }
        if (!is_read) Py_RETURN_NONE;
        return PyBytes_FromStringAndSize(numbers.data(), static_cast<Py_ssize_t>(numbers.size()));
    }, nullptr);
}

PyMethodDef module_methods[] = {
    method<cost_of_json>("json_cost"),
    method<numbers_of_json>("json_numbers"),
    method<packed_numbers>("packed_numbers"),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef cutter_methods[] = {
    method<segments>("segments"),
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot cutter_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_cutter)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Cutter>)},
    {Py_tp_methods, cutter_methods},
    {Py_tp_doc, const_cast<char*>("Cutter of texts before added tokens and between words.")},
    {0, nullptr},
};
PyType_Spec cutter_spec = {"kvatlas.tokenization.encoding._native.Cutter", sizeof(Object<Cutter>), 0, Py_TPFLAGS_DEFAULT, cutter_slots};

PyMethodDef encoder_methods[] = {
    method<encode>("encode"),
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot encoder_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_encoder)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Encoder>)},
    {Py_tp_methods, encoder_methods},
    {Py_tp_doc, const_cast<char*>("Encoder of a byte-level BPE, for texts of known characters.")},
    {0, nullptr},
};
PyType_Spec encoder_spec = {"kvatlas.tokenization.encoding._native.Encoder", sizeof(Object<Encoder>), 0, Py_TPFLAGS_DEFAULT, encoder_slots};

int add_types(PyObject* module) {
    return guarded([&] {
        Py_DECREF(add_type(module, "Cutter", &cutter_spec));
        Py_DECREF(add_type(module, "Encoder", &encoder_spec));
        return 0;
    }, -1);
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(add_types)},
    {0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.tokenization.encoding._native", nullptr, 0, module_methods, module_slots, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }

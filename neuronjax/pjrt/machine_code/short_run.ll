; Runs a program on one core without a line of Python (short_run_ir.py); lines as ir_lines.py
; expands them.

define i1 @may_run(ptr %args, ptr %plan) #0 {
  %asked = get i64 %args, at_num_args
  %takes = get i64 %plan, plan_arguments
  %as_many = icmp eq i64 %asked, %takes
  br i1 %as_many, label %records, label %no
records:
  %free = load i64, ptr {free_count}
  %results = get i64 %plan, plan_results
  %enough = icmp uge i64 %free, %results
  br i1 %enough, label %watched, label %no
watched:
  %observers = get ptr %plan, plan_observers
  %watching = python i64 size(ptr %observers)
  %unwatched = icmp eq i64 %watching, 0
  br i1 %unwatched, label %way, label %no
way:
  %program = get ptr %plan, plan_program
  %name = load ptr, ptr {name_plain}
  %now = python ptr attribute(ptr %program, ptr %name)
  %unknown = icmp eq ptr %now, null
  br i1 %unknown, label %no, label %compare
compare:
  python void drop(ptr %now)
  %plain = get ptr %plan, plan_plain
  %same = icmp eq ptr %now, %plain
  ret i1 %same
no:
  ret i1 false
}

define ptr @arrays(ptr %args, ptr %plan) #0 {
  %count = get i64 %plan, plan_arguments
  %device = get ptr %plan, plan_device
  %list = python ptr list_new(i64 %count)
  %no_list = icmp eq ptr %list, null
  br i1 %no_list, label %none, label %begin
begin:
  %some = icmp ne i64 %count, 0
  br i1 %some, label %row, label %complete
row:
  %lists = get ptr %args, at_argument_lists
  %handles = load ptr, ptr %lists
  br label %argument
argument:
  %index = phi i64 [ 0, %row ], [ %following, %taken ]
  %handle_p = getelementptr ptr, ptr %handles, i64 %index
  %record = load ptr, ptr %handle_p
  %on = get ptr %record, at_device
  %here = icmp eq ptr %on, %device
  br i1 %here, label %single, label %unfit
single:
  %value = get ptr %record, at_value
  %shared = icmp eq ptr %value, null
  br i1 %shared, label %unfit, label %known
known:
  %spec = get ptr %record, at_spec
  %dressed = icmp eq ptr %spec, null
  br i1 %dressed, label %ask, label %bare
bare:
  python void keep(ptr %value)
  br label %taken
ask:
  %name = load ptr, ptr {name_array}
  %held = python ptr attribute(ptr %value, ptr %name)
  %failed = icmp eq ptr %held, null
  br i1 %failed, label %unfit, label %look
look:
  %nothing = load ptr, ptr {none}
  %deleted = icmp eq ptr %held, %nothing
  br i1 %deleted, label %gone, label %taken
gone:
  python void drop(ptr %held)
  br label %unfit
taken:
  %array = phi ptr [ %value, %bare ], [ %held, %look ]
  %set = python i32 list_set(ptr %list, i64 %index, ptr %array)
  %following = add i64 %index, 1
  %more = icmp ult i64 %following, %count
  br i1 %more, label %argument, label %complete
complete:
  ret ptr %list
unfit:
  python void drop(ptr %list)
  br label %none
none:
  ret ptr null
}

define ptr @outputs(ptr %args, ptr %plan) #0 {
  %arrays = call ptr @arrays(ptr %args, ptr %plan)
  %unfit = icmp eq ptr %arrays, null
  br i1 %unfit, label %none, label %start
start:
  %start_v = get ptr %plan, plan_start
  %run = python ptr call(ptr %start_v, ptr %arrays)
  python void drop(ptr %arrays)
  %failed = icmp eq ptr %run, null
  br i1 %failed, label %none, label %take
take:
  %two = alloca [2 x ptr]
  store ptr %run, ptr %two
  %second = getelementptr ptr, ptr %two, i64 1
  %handlers = get ptr %plan, plan_handlers
  store ptr %handlers, ptr %second
  %name = load ptr, ptr {name_consume_with_handlers}
  %list = python ptr method(ptr %name, ptr %two, i64 2, ptr null)
  python void drop(ptr %run)
  ret ptr %list
none:
  ret ptr null
}

define i1 @has_ended(ptr %outputs) #0 {
  %first = python ptr list_get(ptr %outputs, i64 0)
  %empty = icmp eq ptr %first, null
  br i1 %empty, label %no, label %ask
ask:
  %self = alloca ptr
  store ptr %first, ptr %self
  %is_ready = load ptr, ptr {name_is_ready}
  %answer = python ptr method(ptr %is_ready, ptr %self, i64 1, ptr null)
  %unknown = icmp eq ptr %answer, null
  br i1 %unknown, label %no, label %compare
compare:
  python void drop(ptr %answer)
  %true = load ptr, ptr {true}
  %ready = icmp eq ptr %answer, %true
  br i1 %ready, label %wait, label %no
wait:
  %block = load ptr, ptr {name_block_until_ready}
  %waited = python ptr method(ptr %block, ptr %self, i64 1, ptr null)
  %failed = icmp eq ptr %waited, null
  br i1 %failed, label %no, label %succeeded
succeeded:
  python void drop(ptr %waited)
  ret i1 true
no:
  ret i1 false
}

define void @hand_out(ptr %args, ptr %plan, ptr %outputs) #0 {
  %count = get i64 %plan, plan_results
  %lists = get ptr %args, at_output_lists
  %handles = load ptr, ptr %lists
  br label %result
result:
  %index = phi i64 [ 0, %0 ], [ %following, %result ]
  %record = load ptr, ptr {free_records}
  %next = get ptr %record, at_next
  store ptr %next, ptr {free_records}
  %words = mul i64 %index, {record_words}
  %number = add i64 %words, {plan_records}
  %fresh_p = getelementptr i64, ptr %plan, i64 %number
  %fresh = load [{record_words} x i64], ptr %fresh_p
  store [{record_words} x i64] %fresh, ptr %record
  %spec = get ptr %record, at_spec
  python void keep(ptr %spec)
  %array = python ptr list_get(ptr %outputs, i64 %index)
  python void keep(ptr %array)
  put ptr %array %record, at_value
  %handle_p = getelementptr ptr, ptr %handles, i64 %index
  store ptr %record, ptr %handle_p
  %following = add i64 %index, 1
  %more = icmp ult i64 %following, %count
  br i1 %more, label %result, label %count_them
count_them:
  %free = load i64, ptr {free_count}
  %left = sub i64 %free, %count
  store i64 %left, ptr {free_count}
  %living = load i64, ptr {bare_values}
  %now = add i64 %living, %count
  store i64 %now, ptr {bare_values}
  %events = get ptr %args, at_device_complete_events
  %unasked = icmp eq ptr %events, null
  br i1 %unasked, label %done, label %event
event:
  %ready = load ptr, ptr {ready_event}
  store ptr %ready, ptr %events
  ret void
done:
  ret void
}

define i32 @run_short(ptr %args, ptr %rest) #0 {
  %object = get ptr %args, at_executable
  %plan = get ptr %object, plan_word
  %unplanned = icmp eq ptr %plan, null
  br i1 %unplanned, label %no, label %collect
collect:
  %ended = call i64 @end_bare()
  %waiting = load atomic i64, ptr {destroyed} monotonic, align 8
  %none_wait = icmp eq i64 %waiting, 0
  br i1 %none_wait, label %ask, label %python
python:
  %nothing = load ptr, ptr {none}
  %collect_v = load ptr, ptr {collect}
  %collected = python ptr call(ptr %collect_v, ptr %nothing)
  %not_collected = icmp eq ptr %collected, null
  br i1 %not_collected, label %failed, label %let_go
let_go:
  python void drop(ptr %collected)
  br label %ask
ask:
  %may = call i1 @may_run(ptr %args, ptr %plan)
  br i1 %may, label %allocate, label %failed
allocate:
  %fits = call i64 @charge(ptr %plan)
  %full = icmp eq i64 %fits, 0
  br i1 %full, label %no, label %run
run:
  %outputs = call ptr @outputs(ptr %args, ptr %plan)
  %not_run = icmp eq ptr %outputs, null
  br i1 %not_run, label %return, label %look
return:
  call void @take_back(ptr %plan)
  br label %failed
failed:
  python void clear()
  br label %no
no:
  ret i32 {NO}
look:
  %ready = call i1 @has_ended(ptr %outputs)
  br i1 %ready, label %records, label %pending
records:
  %free = load i64, ptr {free_count}
  %results = get i64 %plan, plan_results
  %enough = icmp uge i64 %free, %results
  br i1 %enough, label %end, label %pending
end:
  call void @hand_out(ptr %args, ptr %plan, ptr %outputs)
  python void drop(ptr %outputs)
  ret i32 {DONE}
pending:
  python void clear()
  store ptr %args, ptr %rest
  %second = getelementptr ptr, ptr %rest, i64 1
  store ptr %outputs, ptr %second
  ret i32 {PENDING}
}

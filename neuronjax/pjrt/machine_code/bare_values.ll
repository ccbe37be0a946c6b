; Counts and ends bare values (values.py); lines as ir_lines.py expands them.
; All of it runs under the interpreter's lock: words and counts need no other. end_bare and
; give_record are called by Python, too. charge and take_back count the memory of a plan's results,
; charge unless a run of it does not fit.

define i64 @give_record(i64 %record) #0 {
  %at = inttoptr i64 %record to ptr
  call void @free_record(ptr %at)
  ret i64 0
}

define void @free_record(ptr %record) #0 {
  put i64 0 %record, at_spec
  %top = load ptr, ptr {free_records}
  put ptr %top %record, at_next
  store ptr %record, ptr {free_records}
  %count = load i64, ptr {free_count}
  %more = add i64 %count, 1
  store i64 %more, ptr {free_count}
  ret void
}

define i64 @end_bare() #0 {
  %first = atomicrmw xchg ptr {destroyed_bare}, i64 0 acq_rel
  br label %next
next:
  %at = phi i64 [ %first, %0 ], [ %following, %end ]
  %none = icmp eq i64 %at, 0
  br i1 %none, label %done, label %end
end:
  %record = inttoptr i64 %at to ptr
  %following = get i64 %record, at_next
  %device = get ptr %record, at_device
  %counts = load ptr, ptr %device
  %short = get i16 %record, at_bytes
  %bytes = zext i16 %short to i64
  %bare = get i64 %counts, at_bare
  %less = sub i64 %bare, %bytes
  put i64 %less %counts, at_bare
  %living = load i64, ptr {bare_values}
  %fewer = sub i64 %living, 1
  store i64 %fewer, ptr {bare_values}
  %value = get ptr %record, at_value
  %spec = get ptr %record, at_spec
  call void @free_record(ptr %record)
  python void drop(ptr %value)
  python void drop(ptr %spec)
  br label %next
done:
  ret i64 0
}

define i64 @charge(ptr %plan) #0 {
  %bytes = get i64 %plan, plan_bytes
  %needed = get i64 %plan, plan_needed
  %device = get ptr %plan, plan_device
  %counts = load ptr, ptr %device
  %tensors = get i64 %counts, at_tensors
  %bare = get i64 %counts, at_bare
  %bare_now = add i64 %bare, %bytes
  %before = add i64 %tensors, %bare
  %in_use = add i64 %before, %needed
  %limit = get i64 %counts, at_limit
  %fits = icmp sle i64 %in_use, %limit
  br i1 %fits, label %allocate, label %full
allocate:
  put i64 %bare_now %counts, at_bare
  %allocs = get i64 %counts, at_bare_allocs
  %one_more = add i64 %allocs, 1
  put i64 %one_more %counts, at_bare_allocs
  call void @raise(ptr %counts, i64 {at_bare_peak}, i64 %in_use)
  call void @raise(ptr %counts, i64 {at_bare_largest}, i64 %bytes)
  ret i64 1
full:
  ret i64 0
}

define void @raise(ptr %counts, i64 %at, i64 %to) #0 {
  %place = getelementptr i8, ptr %counts, i64 %at
  %before = load i64, ptr %place
  %higher = icmp sgt i64 %to, %before
  %most = select i1 %higher, i64 %to, i64 %before
  store i64 %most, ptr %place
  ret void
}

define void @take_back(ptr %plan) #0 {
  %bytes = get i64 %plan, plan_bytes
  %device = get ptr %plan, plan_device
  %counts = load ptr, ptr %device
  %bare = get i64 %counts, at_bare
  %less = sub i64 %bare, %bytes
  put i64 %less %counts, at_bare
  ret void
}
